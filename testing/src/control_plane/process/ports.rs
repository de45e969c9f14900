//! Ports on 127.0.0.1 that nobody else comes by.

use std::net::TcpListener;

use crate::Error;

// Below the ports that Linux and macOS give to outgoing connections. A client that keeps trying to reach a stopped
// server on one of those is at some point given that very port, connects to itself, and holds it.
const FROM: u16 = 20_000;
const TO: u16 = 29_999;
const TRIES: u32 = 200;

/// The ports of one control plane, the same for its whole life.
#[derive(Clone, Copy, Debug)]
pub(in crate::control_plane) struct Ports {
    pub(in crate::control_plane) etcd: u16,
    pub(super) etcd_peers: u16,
    pub(super) api_server: u16,
}

impl Ports {
    /// Three ports that were free a moment ago. Another process may take one before it is used: start again with others.
    pub(super) fn free() -> Result<Self, Error> {
        // Held until all three are known, so that they differ.
        let held = [free()?, free()?, free()?];
        let [etcd, etcd_peers, api_server] = held.each_ref().map(|(port, _)| *port);
        Ok(Self { etcd, etcd_peers, api_server })
    }
}

fn free() -> Result<(u16, TcpListener), Error> {
    (0..TRIES)
        .map(|_| rand::random_range(FROM..=TO))
        .find_map(|port| Some((port, TcpListener::bind(("127.0.0.1", port)).ok()?)))
        .ok_or(Error::NoPort { from: FROM, to: TO })
}
