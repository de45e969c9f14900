//! The HTTP server of every port of a process: probes, metrics, profiles and the webhook. It limits the number of
//! connections and the time for which a client may hold one, so that clients cannot use up the memory of the process or
//! shut out others.

mod connection;
mod server;
mod turns;

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

pub use self::{
    connection::{Activity, HeldByResponse, Phase},
    server::Server,
    turns::{Turn, Turns},
};

/// The limits of one port.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The number of open connections. To make room for another, the server closes one of the client with the most
    /// connections: the one that has waited longest for that client, or else for its response. No client is shut out by one
    /// that has more. If the only client waits for responses on all of them, the new connection waits until it has one.
    pub connections: usize,
    /// The bytes that the head of a request may have, at least 8,192. Each connection may hold as many.
    pub head: usize,
    /// The time that a client may take for the handshake and the head of its first request, and to read each response.
    pub receive_timeout: Duration,
    /// The time from a response to the head of the next request.
    pub idle_timeout: Duration,
    /// The time that a connection has for its first request once the server is closing.
    pub closing_timeout: Duration,
}

/// The limits of a port without TLS: probes, metrics and profiles have few clients and small requests.
impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 100,
            head: 16 * 1024,
            receive_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
            closing_timeout: Duration::from_secs(1),
        }
    }
}

/// Turns an accepted connection into a stream of HTTP, for example by a TLS handshake.
pub trait Handshake: Send + Sync + 'static {
    /// The stream of HTTP.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;
    /// The facts about the client that the handshake has shown. Each request has them as an extension.
    type Peer: Clone + Send + Sync + 'static;

    /// Makes the stream. `None` if the connection has failed.
    fn accept(&self, stream: TcpStream) -> impl Future<Output = Option<(Self::Stream, Self::Peer)>> + Send;
}

/// HTTP without TLS.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Handshake for Plain {
    type Stream = TcpStream;
    type Peer = ();

    async fn accept(&self, stream: TcpStream) -> Option<(TcpStream, ())> {
        Some((stream, ()))
    }
}
