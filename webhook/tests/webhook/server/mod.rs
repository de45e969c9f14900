//! Tests of the TLS server: its responses, its limits and draining.

mod bodies;
mod connections;
mod draining;
mod first_lists;
mod responses;
mod slow_code;

use std::time::Duration;

use reknit_webhook::{Limits, Webhook};
use rustls::version::TLS13;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::Instant,
};

use crate::{
    lamp::Lamp,
    local_server::{LocalServer, tls_client},
};

type Stream = tokio_rustls::client::TlsStream<TcpStream>;

/// A webhook that defaults and validates lamps, with these limits.
fn lamp_webhook(limits: Limits) -> Webhook {
    Webhook::new("demo.reknit.dev").defaulting::<Lamp>().validation::<Lamp>().limits(limits)
}

/// Limits whose durations are short enough for tests.
fn short_limits() -> Limits {
    Limits {
        receive_timeout: Duration::from_secs(1),
        quiet_period: Duration::from_millis(200),
        ..Limits::default()
    }
}

async fn connect(server: &LocalServer) -> Stream {
    connect_from("127.0.0.1", server).await
}

/// Connects from this address of the loopback network.
async fn connect_from(ip: &str, server: &LocalServer) -> Stream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{ip}:0").parse().unwrap()).unwrap();
    let tcp = socket.connect(server.address).await.unwrap();
    tls_client(&server.ca, &TLS13).connect(server.address.ip().into(), tcp).await.unwrap()
}

/// Sends a request with `connection: close`, and reads the response.
async fn send(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), head: &str, body: &[u8]) -> (u16, String) {
    let head =
        format!("{head}\r\nhost: webhook\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    // A server that refuses the head may close the connection before it reads the body.
    let _ = stream.write_all(body).await;
    let _ = stream.flush().await;
    read(stream).await
}

/// Reads until the connection ends. Returns the status code, or 0 if there is no response, and the body.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> (u16, String) {
    let mut response = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        response.extend_from_slice(&buffer[..count]);
    }
    let text = String::from_utf8(response).unwrap();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

async fn post(server: &LocalServer, path: &str, body: &[u8]) -> (u16, String) {
    let head = format!("POST {path} HTTP/1.1\r\ncontent-type: application/json");
    send(&mut connect(server).await, &head, body).await
}

/// An AdmissionReview of the creation of a lamp in this room.
fn review(room: &str) -> Value {
    let lamp =
        json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "metadata": {}, "spec": {"room": room}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "kind": {"group": "tests.reknit.dev", "version": "v1", "kind": "Lamp"},
        "resource": {"group": "tests.reknit.dev", "version": "v1", "resource": "lamps"}, "operation": "CREATE",
        "userInfo": {"username": "alice"}, "object": lamp, "oldObject": null,
    }})
}

/// Starts a request whose head declares a body of `length` bytes, and sends only the bytes `sent` of the body.
async fn start_request(server: &LocalServer, path: &str, length: usize, sent: &[u8]) -> Stream {
    let mut stream = connect(server).await;
    send_part(&mut stream, path, length, sent).await;
    stream
}

/// Sends the head of such a request, and these bytes of its body.
async fn send_part(stream: &mut Stream, path: &str, length: usize, sent: &[u8]) {
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json");
    let head = format!("{head}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(sent).await.unwrap();
    stream.flush().await.unwrap();
}

/// Asserts that a review of about 200 kB is answered within five seconds, before the limits of silent clients end.
async fn assert_answered_promptly(server: &LocalServer) {
    let (start, body) = (Instant::now(), review(&"r".repeat(200_000)).to_string());
    let answer = post(server, "/defaulting", body.as_bytes());
    let answer = tokio::time::timeout(Duration::from_secs(5), answer).await;
    let (code, message) = answer.unwrap_or_else(|_| panic!("no response within {:?}", start.elapsed()));
    assert_eq!(code, 200, "{message}");
}
