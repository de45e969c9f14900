//! The limit of connections, with several clients of HTTP/1.
#![cfg(test)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, routing::get};
use reknit_server::{Limits, Plain, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Semaphore,
    time::timeout,
};

/// Connects from this address of the loopback network.
async fn connect_from(ip: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{ip}:0").parse().unwrap()).unwrap();
    socket.connect(address).await.unwrap()
}

/// Sends a request, and returns true if it is answered.
async fn is_answered(stream: &mut TcpStream) -> bool {
    let mut answer = Vec::new();
    let sent = stream.write_all(b"GET / HTTP/1.1\r\nHost: tests\r\n\r\n").await;
    while sent.is_ok() && !answer.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { break };
        answer.push(byte);
    }
    answer.starts_with(b"HTTP/1.1 200 OK")
}

/// A server of three connections, with a path that is answered at once, and one that is answered once it is released. Also
/// returns a permit for each request of that path, and the semaphore that releases them.
async fn serve() -> (SocketAddr, Arc<Semaphore>, Arc<Semaphore>) {
    let (begun, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (count, released) = (begun.clone(), release.clone());
    let wait = move || {
        count.add_permits(1);
        let released = released.clone();
        async move { released.acquire().await.unwrap().forget() }
    };
    let router = Router::new().route("/", get(async || "")).route("/wait", get(wait));
    let limits = Limits { connections: 3, ..Limits::default() };
    tokio::spawn(Server::new("tests", Plain, router, limits).run(listener, std::future::pending()));
    (address, begun, release)
}

/// An API server keeps its connection to a webhook for its next review.
#[tokio::test]
async fn a_client_with_many_connections_shuts_out_only_itself() {
    let (address, ..) = serve().await;
    let mut modest = connect_from("127.0.0.2", address).await;
    assert!(is_answered(&mut modest).await);
    let mut greedy = Vec::new();
    for _ in 0..6 {
        greedy.push(connect_from("127.0.0.1", address).await);
    }
    let _ = greedy[2].read_to_end(&mut Vec::new()).await; // until others of this client have been accepted
    assert!(is_answered(&mut modest).await, "the connection of another client was closed");
    assert!(is_answered(&mut greedy[5]).await);
}

#[tokio::test]
async fn a_client_that_waits_for_many_answers_makes_room_for_others_and_not_for_itself() {
    let (address, begun, release) = serve().await;
    let mut modest = connect_from("127.0.0.2", address).await;
    assert!(is_answered(&mut modest).await);
    let mut greedy = Vec::new();
    for number in 0..4 {
        let mut stream = connect_from("127.0.0.1", address).await;
        let _ = stream.write_all(b"GET /wait HTTP/1.1\r\nHost: tests\r\n\r\n").await;
        greedy.push(stream);
        if number < 2 {
            begun.acquire().await.unwrap().forget();
        }
    }
    for refused in &mut greedy[2..] {
        let mut answer = Vec::new();
        let closed = timeout(Duration::from_secs(10), refused.read_to_end(&mut answer)).await;
        assert!(closed.is_ok(), "the connection of another client was closed for it");
    }
    assert!(is_answered(&mut modest).await, "the connection of another client was closed");
    assert!(is_answered(&mut connect_from("127.0.0.3", address).await).await, "another client was shut out");
    release.add_permits(2);
}
