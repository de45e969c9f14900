//! The ports of a process.
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use axum::Router;
use tokio::net::TcpListener;

use super::failure::Failure;

/// An IP address to listen on, and the name of its setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    pub(crate) ip: IpAddr,
    pub(crate) setting: &'static str,
}

impl Host {
    pub(crate) const fn of_all(ip: IpAddr) -> Self {
        Self { ip, setting: "--bind-address" }
    }
}

/// Opens a port for a server of the process. An error names the setting that chooses another port or address.
pub(crate) async fn bind(
    what: &str,
    host: Option<Host>,
    port: u16,
    variable: &str,
) -> Result<TcpListener, Failure> {
    open(what, host, port).await.map_err(|error| match error.is_foreign_address() {
        true => Failure::new(error.to_string()),
        false => Failure::new(format!("{error}; {variable} chooses another port")),
    })
}

/// A port that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {what}: {}", self.why())]
pub(crate) struct ListenError {
    what: String,
    address: SocketAddr,
    setting: &'static str,
    error: io::Error,
}

impl ListenError {
    fn is_foreign_address(&self) -> bool {
        self.error.kind() == io::ErrorKind::AddrNotAvailable
    }

    fn why(&self) -> String {
        match self.is_foreign_address() {
            true => format!(
                "{} is not an address of this machine; {} chooses another",
                self.address.ip(),
                self.setting
            ),
            false => self.error.to_string(),
        }
    }
}

/// Opens a port, by default on all interfaces, for IPv4 and IPv6 if the machine has both.
pub(crate) async fn open(what: &str, host: Option<Host>, port: u16) -> Result<TcpListener, ListenError> {
    let bound = match host {
        Some(host) => TcpListener::bind((host.ip, port)).await,
        None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
            Err(e) if e.kind() != io::ErrorKind::AddrInUse && e.kind() != io::ErrorKind::PermissionDenied => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
            }
            other => other,
        },
    };
    bound.map_err(|error| {
        let Host { ip, setting } = host.unwrap_or(Host::of_all(Ipv4Addr::UNSPECIFIED.into()));
        ListenError { what: what.to_owned(), address: SocketAddr::new(ip, port), setting, error }
    })
}

/// Parses the host of a setting: an IP address or `localhost`.
pub(crate) fn resolve(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        host => host.parse().ok(),
    }
}

/// Logs the address, which has the actual port if any free one was asked for.
pub(crate) fn log_address(what: &str, listener: &TcpListener) {
    match listener.local_addr() {
        Ok(address) => tracing::info!(%address, "listening for {what}"),
        Err(error) => tracing::info!(%error, "listening for {what}"),
    }
}

/// Serves in the background until the process ends.
pub(crate) fn serve(what: &'static str, listener: TcpListener, router: Router) {
    log_address(what, &listener);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "no longer listening for {what}");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Host = Host::of_all(IpAddr::V4(Ipv4Addr::LOCALHOST));

    #[tokio::test]
    async fn the_error_of_a_port_in_use_names_the_setting() {
        let taken = bind("probes", Some(HERE), 0, "PORT").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        for host in [Some(HERE), None] {
            let failure = bind("probes", host, port, "PORT").await.unwrap_err().to_string();
            assert!(failure.contains(&format!(":{port} for probes: Address already in use")), "{failure}");
            assert!(failure.ends_with("; PORT chooses another port"), "{failure}");
        }
    }

    #[tokio::test]
    async fn the_error_of_a_foreign_address_names_the_setting() {
        let elsewhere = Host::of_all(IpAddr::from([192, 0, 2, 1]));
        let failure = bind("probes", Some(elsewhere), 8080, "PORT").await.unwrap_err().to_string();
        assert_eq!(
            failure,
            "cannot listen on 192.0.2.1:8080 for probes: 192.0.2.1 is not an address of this machine; \
             --bind-address chooses another"
        );
    }
}
