//! Limits on connections and slow clients.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use reknit_apis::FieldError;
use reknit_webhook::Limits;
use rustls::version::TLS13;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::Instant,
};
use tokio_rustls::TlsConnector;

use super::{
    assert_answered_promptly, connect, lamp_webhook, post, read, review, short_limits, start_request,
};
use crate::{
    lamp::Rule,
    local_server::{serve, tls_client},
    memory::{in_own_process, resident_mib},
};

#[test]
fn slow_clients_are_disconnected_and_do_not_block_others() {
    in_own_process(async || {
        let limits = Limits { receive_timeout: Duration::from_secs(5), ..short_limits() };
        let server = serve(lamp_webhook(limits)).await;
        let slow: Vec<_> = (0..500)
            .map(|number| tokio::spawn(slow_client(tls_client(&server.ca, &TLS13), server.address, number)))
            .collect();
        let (start, before) = (Instant::now(), resident_mib());
        let (mut answered, mut peak) = (0, 0);
        while slow.iter().any(|client| !client.is_finished()) {
            assert!(start.elapsed() < Duration::from_secs(300), "slow clients are still connected");
            let body = review("hall").to_string();
            let response = post(&server, "/defaulting", body.as_bytes());
            let (code, _) = tokio::time::timeout(Duration::from_secs(60), response).await.unwrap();
            assert_eq!(code, 200);
            answered += 1;
            peak = peak.max(resident_mib().saturating_sub(before));
        }
        let took = start.elapsed();
        println!(
            "500 slow clients were disconnected in {took:?}; memory grew by {peak} MiB, clients included; {answered} \
             other requests were answered"
        );
        assert!(answered > 0 && peak < 200, "{peak} MiB");
    });
}

/// Sends a byte a second until the server closes the connection. Clients with an even number send the head at once and
/// the body slowly. Those with an odd number send the head slowly.
async fn slow_client(connector: TlsConnector, address: SocketAddr, number: u32) {
    let tcp = TcpStream::connect(address).await.unwrap();
    let Ok(mut stream) = connector.connect(address.ip().into(), tcp).await else { return };
    if number.is_multiple_of(2) {
        let head = "POST /defaulting HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n";
        let _ = stream.write_all(head.as_bytes()).await;
    }
    let (mut reads, mut writes) = tokio::io::split(stream);
    let trickle = async {
        while writes.write_all(b"P").await.is_ok() && writes.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = trickle => {}
        _ = read(&mut reads) => {}
    }
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_until_another_is_answered() {
    let (begun, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (rule_begun, gate) = (begun.clone(), release.clone());
    let webhook = lamp_webhook(Limits { connections: 2, ..short_limits() }).validator(Rule(move |_| {
        rule_begun.add_permits(1);
        let gate = gate.clone();
        async move {
            gate.acquire().await?.forget();
            Ok(FieldError::none())
        }
    }));
    let server = serve(webhook).await;
    let body = review("hall").to_string();
    let mut blocked_requests = Vec::new();
    for _ in 0..2 {
        blocked_requests
            .push(start_request(&server, "/resource-validation", body.len(), body.as_bytes()).await);
    }
    let _both = begun.acquire_many(2).await.unwrap();
    let mut third = Box::pin(post(&server, "/defaulting", body.as_bytes()));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut third).await.is_err());
    release.add_permits(1);
    assert_eq!(third.await.0, 200);
    release.add_permits(1);
    for mut stream in blocked_requests {
        assert_eq!(read(&mut stream).await.0, 200);
    }
}

#[tokio::test]
async fn silent_connections_do_not_shut_out_others() {
    let server = serve(lamp_webhook(Limits { connections: 8, ..Limits::default() })).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(connect(&server).await);
    }
    // At the limit, the connection that has waited longest for its client is closed.
    assert_answered_promptly(&server).await;
}

#[tokio::test]
async fn connections_without_a_handshake_or_a_body_do_not_shut_out_others() {
    let server = serve(lamp_webhook(Limits { connections: 8, ..Limits::default() })).await;
    let (mut without_handshake, mut without_body) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        without_handshake.push(TcpStream::connect(server.address).await.unwrap());
        without_body.push(start_request(&server, "/defaulting", 900, b"").await);
    }
    assert_answered_promptly(&server).await;
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_the_receive_limit() {
    let server = serve(lamp_webhook(short_limits())).await;
    let (mut silent, start) = (connect(&server).await, Instant::now());
    let closed = tokio::time::timeout(Duration::from_secs(60), silent.read_u8()).await;
    assert!(closed.is_ok_and(|read| read.is_err()), "still open after {:?}", start.elapsed());
}
