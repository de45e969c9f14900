//! Clients that send many requests at once.
#![cfg(test)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Router, routing::get};
use reknit_server::{Limits, Plain, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Probes have one thread: a client must not occupy it until the kubelet gives up.
#[tokio::test]
async fn a_single_request_is_answered_before_most_of_those_that_others_sent_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connect = async |requests: &[u8]| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(requests).await.unwrap();
        stream
    };
    let mut greedy = Vec::new();
    for _ in 0..40 {
        greedy.push(connect(&b"GET / HTTP/1.1\r\nHost: tests\r\n\r\n".repeat(200)).await);
    }
    let mut modest = connect(b"GET / HTTP/1.1\r\nHost: tests\r\nConnection: close\r\n\r\n").await;
    let count = Arc::new(AtomicUsize::new(0));
    let answer = async move || count.fetch_add(1, Ordering::Relaxed).to_string();
    let server = Server::new("tests", Plain, Router::new().route("/", get(answer)), Limits::default());
    tokio::spawn(server.run(listener, std::future::pending()));
    let mut answer = String::new();
    modest.read_to_string(&mut answer).await.unwrap();
    let before: usize = answer.rsplit("\r\n").next().unwrap().parse().unwrap();
    assert!(before < 320, "{before} of 8,000 requests were answered before");
}
