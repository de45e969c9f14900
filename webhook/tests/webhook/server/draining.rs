//! A webhook that stops.

use std::time::Duration;

use reknit_testing::eventually;
use reknit_webhook::Limits;
use rustls::version::TLS13;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use super::{connect, lamp_webhook, post, read, review, send, short_limits};
use crate::local_server::{serve, tls_client};

#[tokio::test]
async fn a_draining_webhook_fails_probes_answers_requests_and_closes_when_quiet() {
    let mut server =
        serve(lamp_webhook(Limits { quiet_period: Duration::from_secs(2), ..short_limits() })).await;
    let probe = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
    assert_eq!(send(&mut connect(&server).await, probe, b"").await.0, 200);
    server.stop();
    let answer = eventually("the probe to fail", Duration::from_secs(2), async || {
        let (code, message) = send(&mut connect(&server).await, probe, b"").await;
        if code == 503 { Ok(message) } else { Err(code) }
    })
    .await;
    assert_eq!(answer, "shutting down\n");
    assert_eq!(post(&server, "/defaulting", review("hall").to_string().as_bytes()).await.0, 200);
    tokio::time::timeout(Duration::from_secs(60), &mut server.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_draining_webhook_closes_kept_connections_after_an_answer() {
    let mut server =
        serve(lamp_webhook(Limits { quiet_period: Duration::from_secs(2), ..short_limits() })).await;
    let mut connection = connect(&server).await;
    let body = review("hall").to_string();
    let length = body.len();
    let request = format!(
        "POST /defaulting HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut buffer = vec![0; 64 * 1024];
    connection.write_all(request.as_bytes()).await.unwrap();
    let count = connection.read(&mut buffer).await.unwrap();
    let head = String::from_utf8_lossy(&buffer[..count]).into_owned();
    assert!(head.starts_with("HTTP/1.1 200") && !head.contains("connection: close"), "{head}");
    server.stop();
    let probe = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
    eventually("the probe to fail", Duration::from_secs(2), async || {
        send(&mut connect(&server).await, probe, b"").await.0 == 503
    })
    .await;
    connection.write_all(request.as_bytes()).await.unwrap();
    let count = connection.read(&mut buffer).await.unwrap();
    let head = String::from_utf8_lossy(&buffer[..count]).into_owned();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("connection: close"), "{head}");
    assert_eq!(read(&mut connection).await, (0, String::new()), "another response");
}

#[tokio::test]
async fn a_draining_webhook_ends_under_constant_requests() {
    let mut server =
        serve(lamp_webhook(Limits { quiet_period: Duration::from_secs(1), ..short_limits() })).await;
    server.stop();
    let (start, body) = (Instant::now(), review("hall").to_string());
    while !server.task.is_finished() {
        assert!(start.elapsed() < Duration::from_secs(60), "the webhook has not ended");
        let Ok(tcp) = TcpStream::connect(server.address).await else { continue };
        let connected = tls_client(&server.ca, &TLS13).connect(server.address.ip().into(), tcp).await;
        let Ok(mut stream) = connected else { continue };
        let head = "POST /defaulting HTTP/1.1\r\ncontent-type: application/json";
        assert_eq!(send(&mut stream, head, body.as_bytes()).await.0, 200);
    }
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_client_connected_before_the_stop_is_answered_after_it() {
    let mut server = serve(lamp_webhook(Limits { quiet_period: Duration::ZERO, ..short_limits() })).await;
    let mut connected = connect(&server).await;
    server.stop();
    eventually("the listener to close", Duration::from_secs(60), async || {
        TcpStream::connect(server.address).await.is_err()
    })
    .await;
    let head = "POST /defaulting HTTP/1.1\r\ncontent-type: application/json";
    assert_eq!(send(&mut connected, head, review("hall").to_string().as_bytes()).await.0, 200);
    tokio::time::timeout(Duration::from_secs(60), &mut server.task).await.unwrap().unwrap();
}
