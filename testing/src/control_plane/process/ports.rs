//! Free ports on 127.0.0.1.

use std::net::TcpListener;

use crate::Error;

// Below the range that Linux and macOS use for outgoing connections. Otherwise a client that retries to connect to a
// stopped server could get the server's port as its own source port, connect to itself, and keep the port in use.
const FROM: u16 = 20_000;
const TO: u16 = 29_999;
const TRIES: u32 = 200;

/// The ports of one control plane. They stay the same when it restarts.
#[derive(Clone, Copy, Debug)]
pub(in crate::control_plane) struct Ports {
    pub(in crate::control_plane) etcd: u16,
    pub(super) etcd_peers: u16,
    pub(super) api_server: u16,
}

impl Ports {
    /// Finds three free ports. Another process can take one of them before it is used, so the caller has to retry.
    pub(super) fn free() -> Result<Self, Error> {
        // The listeners are kept until all three ports are known, so that the ports differ.
        let bound = [bind_free()?, bind_free()?, bind_free()?];
        let [etcd, etcd_peers, api_server] = bound.each_ref().map(|(port, _)| *port);
        Ok(Self { etcd, etcd_peers, api_server })
    }
}

fn bind_free() -> Result<(u16, TcpListener), Error> {
    (0..TRIES)
        .map(|_| rand::random_range(FROM..=TO))
        .find_map(|port| Some((port, TcpListener::bind(("127.0.0.1", port)).ok()?)))
        .ok_or_else(|| Error::new(format!("found no free port on 127.0.0.1 between {FROM} and {TO}")))
}
