//! A free port on 127.0.0.1.

use std::net::TcpListener;

use crate::Error;

// Below the range that Linux and macOS use for outgoing connections. Otherwise a client that retries to connect to a
// stopped server could get the server's port as its own source port, connect to itself, and keep the port in use.
const FROM: u16 = 20_000;
const TO: u16 = 29_999;
const TRIES: u32 = 200;

/// Finds a free port. Another process can take it before it is used, so the caller has to retry.
pub(super) fn free_port() -> Result<u16, Error> {
    (0..TRIES)
        .map(|_| rand::random_range(FROM..=TO))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .ok_or_else(|| Error::new(format!("found no free port on 127.0.0.1 between {FROM} and {TO}")))
}
