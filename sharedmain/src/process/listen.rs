//! The listening sockets of a process.
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use axum::Router;
use reknit_server::{Handshake, Limits, Server};
use tokio::{net::TcpListener, runtime::Handle};

use super::failure::Failure;

/// An IP address to listen on, and the name of the flag, environment variable or ConfigMap key that sets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    pub(crate) ip: IpAddr,
    pub(crate) setting: &'static str,
}

impl Host {
    pub(crate) const fn bind_address(ip: IpAddr) -> Self {
        Self { ip, setting: "--bind-address" }
    }

    /// The host of a flag, if it names one.
    pub(crate) fn of_flag(ip: Option<IpAddr>, flag: &'static str) -> Option<Self> {
        ip.map(|ip| Self { ip, setting: flag })
    }
}

/// Opens a port at the IP address of `host`, or else on all interfaces.
///
/// # Errors
///
/// Fails if the address or the port is not available. The text names the setting that chooses another address, or else
/// the environment variable `variable`, if any, that chooses another port.
pub(crate) async fn open(
    purpose: &str,
    host: Option<Host>,
    port: u16,
    variable: Option<&str>,
) -> Result<TcpListener, String> {
    let opened = match host {
        Some(host) => TcpListener::bind((host.ip, port)).await,
        None => bind_all_interfaces(port).await,
    };
    opened.map_err(|error| {
        let Host { ip, setting } = host.unwrap_or(Host::bind_address(Ipv4Addr::UNSPECIFIED.into()));
        let address = SocketAddr::new(ip, port);
        let why = match (error.kind(), variable) {
            (io::ErrorKind::AddrNotAvailable, _) => {
                format!("{ip} is not an address of this machine; {setting} chooses another")
            }
            (_, Some(variable)) => format!("{error}; {variable} chooses another port"),
            (_, None) => error.to_string(),
        };
        format!("cannot listen on {address} for {purpose}: {why}")
    })
}

/// Binds the port for IPv6 and IPv4, or for IPv4 alone if the machine has no IPv6.
async fn bind_all_interfaces(port: u16) -> io::Result<TcpListener> {
    use io::ErrorKind::{AddrInUse, PermissionDenied};
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(e) if !matches!(e.kind(), AddrInUse | PermissionDenied) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

/// Parses the host of a setting: an IP address, or `localhost`, which is 127.0.0.1.
pub(crate) fn parse_host(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        host => host.parse().ok(),
    }
}

/// Parses the `[IP]:PORT` of a setting.
pub(crate) fn parse_address(text: &str) -> Option<(Option<IpAddr>, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let ip = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host) {
        "" => None,
        host => Some(parse_host(host)?),
    };
    Some((ip, port.parse().ok()?))
}

/// Logs the address of the listener. For port 0 this shows the port that the system chose.
pub(crate) fn log_address(purpose: &str, listener: &TcpListener) {
    let address = listener.local_addr().ok().map(tracing::field::display);
    tracing::info!(address, "listening for {purpose}");
}

/// Opens a port, and serves in the background on this runtime until the process ends.
pub(super) async fn serve(
    runtime: &Handle,
    purpose: &'static str,
    host: Option<Host>,
    port: u16,
    variable: &'static str,
    handshake: impl Handshake,
    router: Router,
) -> Result<(), Failure> {
    let serving = runtime.spawn(async move {
        let listener = open(purpose, host, port, Some(variable)).await?;
        log_address(purpose, &listener);
        let server = Server::new(purpose, handshake, router, Limits::default());
        tokio::spawn(server.run(listener, std::future::pending()));
        Ok(())
    });
    serving.await.map_err(|e| e.to_string()).flatten().map_err(Failure::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: Host = Host::bind_address(IpAddr::V4(Ipv4Addr::LOCALHOST));

    #[tokio::test]
    async fn the_error_of_a_port_in_use_names_the_variable() {
        let taken = open("probes", Some(LOOPBACK), 0, Some("PORT")).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        for host in [Some(LOOPBACK), None] {
            let failure = open("probes", host, port, Some("PORT")).await.unwrap_err();
            assert!(failure.contains(&format!(":{port} for probes: Address already in use")), "{failure}");
            assert!(failure.ends_with("; PORT chooses another port"), "{failure}");
        }
    }

    #[tokio::test]
    async fn the_error_of_a_foreign_address_names_the_setting() {
        let elsewhere = Host::bind_address(IpAddr::from([192, 0, 2, 1]));
        let failure = open("probes", Some(elsewhere), 8080, Some("PORT")).await.unwrap_err();
        assert_eq!(
            failure,
            "cannot listen on 192.0.2.1:8080 for probes: 192.0.2.1 is not an address of this machine; \
             --bind-address chooses another"
        );
    }
}
