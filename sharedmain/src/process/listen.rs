//! The ports of a process.
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use axum::Router;
use tokio::net::TcpListener;

use crate::process::failure::Failure;

/// The address to listen on, and the setting that says so.
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

/// Takes the port now, so that a port in use is told at the start, with the variable that chooses another; or that the
/// address is of another machine, with what chooses another of those.
pub(crate) async fn bind(
    what: &str,
    host: Option<Host>,
    port: u16,
    variable: &str,
) -> Result<TcpListener, Failure> {
    take(what, host, port).await.map_err(|not_taken| match not_taken.is_elsewhere() {
        true => Failure::new(not_taken.to_string()),
        false => Failure::new(format!("{not_taken}; {variable} chooses another port")),
    })
}

/// A port that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {what}: {}", self.why())]
pub(crate) struct NotTaken {
    what: String,
    address: SocketAddr,
    setting: &'static str,
    error: io::Error,
}

impl NotTaken {
    fn is_elsewhere(&self) -> bool {
        self.error.kind() == io::ErrorKind::AddrNotAvailable
    }

    fn why(&self) -> String {
        match self.is_elsewhere() {
            true => format!(
                "{} is not an address of this machine; {} chooses another",
                self.address.ip(),
                self.setting
            ),
            false => self.error.to_string(),
        }
    }
}

/// Without an address it is the port of all interfaces, of either family where the machine has both.
pub(crate) async fn take(what: &str, host: Option<Host>, port: u16) -> Result<TcpListener, NotTaken> {
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
        NotTaken { what: what.to_owned(), address: SocketAddr::new(ip, port), setting, error }
    })
}

/// A host to listen on that a setting names: an address, or `localhost`.
pub(crate) fn resolve(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        host => host.parse().ok(),
    }
}

/// Says where it listens, which is news where the port was any that is free.
pub(crate) fn tell(what: &str, listener: &TcpListener) {
    match listener.local_addr() {
        Ok(address) => tracing::info!(%address, "listening for {what}"),
        Err(error) => tracing::info!(%error, "listening for {what}"),
    }
}

/// Serves in the background, for as long as the process runs.
pub(crate) fn serve(what: &'static str, listener: TcpListener, router: Router) {
    tell(what, &listener);
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
    async fn a_port_in_use_is_told_with_what_chooses_another() {
        let taken = bind("probes", Some(HERE), 0, "PORT").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        for host in [Some(HERE), None] {
            let failure = bind("probes", host, port, "PORT").await.unwrap_err().to_string();
            assert!(failure.contains(&format!(":{port} for probes: Address already in use")), "{failure}");
            assert!(failure.ends_with("; PORT chooses another port"), "{failure}");
        }
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_told_with_what_chooses_another() {
        let elsewhere = Host::of_all(IpAddr::from([192, 0, 2, 1]));
        let failure = bind("probes", Some(elsewhere), 8080, "PORT").await.unwrap_err().to_string();
        assert_eq!(
            failure,
            "cannot listen on 192.0.2.1:8080 for probes: 192.0.2.1 is not an address of this machine; \
             --bind-address chooses another"
        );
    }
}
