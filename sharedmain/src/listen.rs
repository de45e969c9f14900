//! The ports of a process.
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use axum::Router;
use tokio::net::TcpListener;

use crate::failure::Failure;

/// Takes the port now, so that a port in use is told at the start, with the variable that chooses another.
pub(crate) async fn bind(
    what: &str,
    address: Option<IpAddr>,
    port: u16,
    variable: &str,
) -> Result<TcpListener, Failure> {
    take(what, address, port)
        .await
        .map_err(|error| Failure::new(format!("{error}; {variable} chooses another port")))
}

/// A port that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {what}: {error}")]
pub(crate) struct NotTaken {
    what: String,
    address: SocketAddr,
    error: io::Error,
}

/// Without an address it is the port of all interfaces, of either family where the machine has both.
pub(crate) async fn take(what: &str, address: Option<IpAddr>, port: u16) -> Result<TcpListener, NotTaken> {
    let bound = match address {
        Some(address) => TcpListener::bind((address, port)).await,
        None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
            Err(e) if e.kind() != io::ErrorKind::AddrInUse && e.kind() != io::ErrorKind::PermissionDenied => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
            }
            other => other,
        },
    };
    bound.map_err(|error| {
        let address = SocketAddr::new(address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port);
        NotTaken { what: what.to_owned(), address, error }
    })
}

/// A host to listen on that a setting names: an address, or `localhost`.
pub(crate) fn resolve(what: &str, host: &str) -> Result<IpAddr, Failure> {
    match host {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        host => host.parse().map_err(|_| {
            Failure::new(format!("cannot listen on {host:?} for {what}: it is not an IP address"))
        }),
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

    #[tokio::test]
    async fn a_port_in_use_is_told_with_what_chooses_another() {
        let taken = bind("probes", Some(Ipv4Addr::LOCALHOST.into()), 0, "PORT").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        for address in [Some(Ipv4Addr::LOCALHOST.into()), None] {
            let failure = bind("probes", address, port, "PORT").await.unwrap_err().to_string();
            assert!(failure.contains(&format!(":{port} for probes: Address already in use")), "{failure}");
            assert!(failure.ends_with("; PORT chooses another port"), "{failure}");
        }
    }
}
