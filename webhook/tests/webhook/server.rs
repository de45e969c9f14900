//! Tests of the TLS server: its responses, its limits and draining.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::lamp::Lamp;
use crate::local_server::{LocalServer, serve, tls_client};
use crate::memory::{MEASUREMENT_LOCK, resident_mib};
use reknit_testing::eventually;
use reknit_webhook::{Limits, Webhook};
use rustls::version::{TLS12, TLS13};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::Instant,
};

type Stream = tokio_rustls::client::TlsStream<TcpStream>;

/// A webhook that defaults and validates lamps, with these limits.
fn lamp_webhook(limits: Limits) -> Webhook {
    Webhook::new("demo.reknit.dev").defaulting::<Lamp>().validation::<Lamp>().limits(limits)
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
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
    let tcp = TcpStream::connect(server.address).await.unwrap();
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

#[tokio::test]
async fn the_response_has_the_uid_and_the_decision() {
    let server = serve(lamp_webhook(short_limits())).await;
    let (code, body) = post(&server, "/resource-validation", review("").to_string().as_bytes()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (code, &answer["kind"], &answer["apiVersion"]),
        (200, &json!("AdmissionReview"), &json!("admission.k8s.io/v1"))
    );
    assert_eq!((&answer["response"]["uid"], &answer["response"]["allowed"]), (&json!("u1"), &json!(false)));
    let status = &answer["response"]["status"];
    assert_eq!(status["message"], "validation failed: missing field(s): spec.room");
    assert_eq!((&status["reason"], &status["code"]), (&json!("Invalid"), &json!(422)));
    assert_eq!(server.counter("reknit_webhook_requests_total", "false"), 1.0);
}

#[tokio::test]
async fn each_invalid_request_gets_its_status() {
    let server = serve(lamp_webhook(short_limits())).await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep = review("hall").to_string().replace("\"hall\"", &deep);
    let mut array = review("hall");
    array["request"]["object"]["spec"]["room"] = vec![0; 1_000_000].into();
    let valid = review("hall").to_string();
    let invalid_unread = review("hall").to_string().replacen("\"uid\"", "\"unread\":\"?\",\"uid\"", 1);
    let invalid_unread = invalid_unread.bytes().map(|byte| if byte == b'?' { 0xff } else { byte }).collect();
    let bodies: [(&str, Vec<u8>, u16, &str); 7] = [
        ("empty", vec![], 400, "could not decode body: "),
        ("truncated", valid.as_bytes()[..valid.len() - 9].to_vec(), 400, "could not decode body: "),
        ("10 MiB", vec![b' '; 10 << 20], 413, "the body has more than 7340032 bytes"),
        ("10,000 deep", deep.into_bytes(), 400, "could not decode body: recursion limit exceeded"),
        ("no UTF-8", b"{\"kind\": \"\xff\"}".to_vec(), 400, "could not decode body: "),
        ("no UTF-8 in a field that is not read", invalid_unread, 400, "could not decode body: invalid utf-8"),
        ("a million items", array.to_string().into_bytes(), 200, "{\"apiVersion\":\"admission.k8s.io/v1\""),
    ];
    for (what, body, code, text) in bodies {
        let (status, message) = post(&server, "/defaulting", &body).await;
        assert!((status, message.starts_with(text)) == (code, true), "{what}: {status} {message}");
    }
    let other_content_type =
        send(&mut connect(&server).await, "POST /defaulting HTTP/1.1\r\ncontent-type: text/yaml", b"a: b")
            .await;
    assert_eq!(other_content_type.0, 415);
    let unknown_path = post(&server, "/nowhere", b"{}").await;
    assert_eq!(unknown_path, (400, "no controller registered for: /nowhere\n".into()));
}

#[tokio::test]
async fn a_panic_in_the_code_of_a_kind_is_answered_with_500_and_counted() {
    let server = serve(lamp_webhook(short_limits())).await;
    let (code, message) = post(&server, "/resource-validation", review("panic").to_string().as_bytes()).await;
    assert_eq!(code, 500);
    assert!(message.starts_with("panicked: "), "{message}");
    assert_eq!(server.counter("reknit_webhook_panics_total", "/resource-validation"), 1.0);
    assert_eq!(post(&server, "/resource-validation", review("hall").to_string().as_bytes()).await.0, 200);
}

#[tokio::test]
async fn a_request_whose_callback_never_ends_gets_504() {
    let limits = Limits { response_timeout: Duration::from_millis(100), ..short_limits() };
    let webhook =
        lamp_webhook(limits).callback(async |_: Lamp, _| std::future::pending::<Result<(), String>>().await);
    let server = serve(webhook).await;
    assert_eq!(post(&server, "/resource-validation", review("hall").to_string().as_bytes()).await.0, 504);
}

#[tokio::test]
async fn slow_code_gets_504_and_does_not_delay_other_requests() {
    let limits = Limits { response_timeout: Duration::from_millis(500), ..short_limits() };
    let server = serve(lamp_webhook(limits)).await;
    let (stuck, fine) = (review("stuck").to_string(), review("hall").to_string());
    let answers = (0..16).map(|n| {
        let body = if n % 2 == 0 { &stuck } else { &fine };
        post(&server, "/resource-validation", body.as_bytes())
    });
    for (n, (code, message)) in futures::future::join_all(answers).await.into_iter().enumerate() {
        assert_eq!(code, if n % 2 == 0 { 504 } else { 200 }, "{message}");
    }
}

#[tokio::test]
async fn probes_fail_while_stuck_code_blocks_other_requests() {
    let limits =
        Limits { response_timeout: Duration::from_millis(200), decoded_bodies: 64 << 10, ..short_limits() };
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let webhook = lamp_webhook(limits).config_parser("config-gate", move |_| {
        let _ = gate.lock().unwrap().recv();
        Ok(())
    });
    let (health, server) = (webhook.health(), serve(webhook).await);
    let probe = async || {
        let head = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
        send(&mut connect(&server).await, head, b"").await
    };
    let hall = review("hall").to_string();
    assert_eq!(post(&server, "/resource-validation", hall.as_bytes()).await.0, 200);
    assert_eq!((probe().await.0, health.stuck()), (200, None));
    let mut gated = review("hall");
    gated["request"]["kind"] = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    gated["request"]["object"] =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config-gate"}});
    assert_eq!(post(&server, "/config-validation", gated.to_string().as_bytes()).await.0, 504);
    assert_eq!(post(&server, "/resource-validation", hall.as_bytes()).await.0, 504);
    eventually("the probe to fail", Duration::from_secs(5), async || {
        let (code, message) = probe().await;
        let stuck = code == 503 && message.starts_with("code has been running for ");
        if stuck { Ok(()) } else { Err(format!("{code} {message}")) }
    })
    .await;
    assert!(health.stuck().unwrap() > Duration::from_millis(600));
    drop(release);
    eventually("the probe to succeed", Duration::from_secs(5), async || probe().await.0 == 200).await;
    assert_eq!(post(&server, "/resource-validation", hall.as_bytes()).await.0, 200);
}

#[tokio::test]
async fn a_blocking_callback_does_not_delay_other_requests_and_counts_as_stuck() {
    let limits = Limits { response_timeout: Duration::from_millis(500), ..short_limits() };
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let begun = Arc::new(tokio::sync::Notify::new());
    let callback_begun = begun.clone();
    let webhook = lamp_webhook(limits).callback(move |lamp: Lamp, _| {
        if lamp.spec.room == "gate" {
            callback_begun.notify_one();
            let _ = gate.lock().unwrap().recv_timeout(Duration::from_secs(5));
        }
        std::future::ready(Ok::<_, String>(()))
    });
    let (health, server) = (webhook.health(), serve(webhook).await);
    let (gated, hall) = (review("gate").to_string(), review("hall").to_string());
    let ((code, _), ()) = tokio::join!(post(&server, "/resource-validation", gated.as_bytes()), async {
        begun.notified().await;
        assert_eq!(post(&server, "/resource-validation", hall.as_bytes()).await.0, 200);
        let head = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
        assert_eq!(send(&mut connect(&server).await, head, b"").await.0, 200);
        assert_eq!(health.stuck(), None);
    });
    assert_eq!(code, 504);
    eventually("the callback to count as stuck", Duration::from_secs(3), async || health.stuck().is_some())
        .await;
    drop(release);
    eventually("the callback to end", Duration::from_secs(5), async || health.stuck().is_none()).await;
}

#[tokio::test]
async fn a_callback_may_wait_for_another_request_to_the_webhook() {
    let released = Arc::new(tokio::sync::Notify::new());
    let release = released.clone();
    let webhook =
        lamp_webhook(Limits { decoded_bodies: 64 << 10, ..short_limits() }).callback(move |_: Lamp, _| {
            let release = release.clone();
            async move {
                release.notified().await;
                Ok::<_, String>(())
            }
        });
    let (server, hall) = (serve(webhook).await, review("hall").to_string());
    let (waited, ()) = tokio::join!(post(&server, "/resource-validation", hall.as_bytes()), async {
        assert_eq!(post(&server, "/defaulting", hall.as_bytes()).await.0, 200);
        released.notify_one();
    });
    assert_eq!(waited.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_its_response_is_disconnected_and_frees_its_bytes() {
    let limits = Limits { body: 20 << 20, bodies: 20 << 20, ..short_limits() };
    let server = serve(lamp_webhook(limits)).await;
    // The response repeats the uid, so the response is as large as the request.
    let mut request = review("hall");
    request["request"]["uid"] = "u".repeat(12 << 20).into();
    let body = request.to_string();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let tcp = socket.connect(server.address).await.unwrap();
    let mut slow_reader =
        tls_client(&server.ca, &TLS13).connect(server.address.ip().into(), tcp).await.unwrap();
    let head = "POST /defaulting HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    slow_reader
        .write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes())
        .await
        .unwrap();
    slow_reader.flush().await.unwrap();
    eventually("the response to be produced", Duration::from_secs(10), async || {
        server.counter("reknit_webhook_requests_total", "/defaulting") >= 1.0
    })
    .await;
    // The budget has room for only one body of this size.
    eventually("room for another body", Duration::from_secs(10), async || {
        let (code, message) = post(&server, "/defaulting", body.as_bytes()).await;
        if code == 200 { Ok(()) } else { Err(message) }
    })
    .await;
    let (_, received) = read(&mut slow_reader).await;
    assert!(received.len() < 12 << 20, "{} bytes", received.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_bodies_take_little_memory_and_do_not_block_small_ones() {
    let _lock = MEASUREMENT_LOCK.lock().await;
    // On a busy machine, a client needs more than the second of the short limits.
    let limits = Limits { receive_timeout: Duration::from_secs(10), ..short_limits() };
    let server = serve(lamp_webhook(limits)).await;
    let mut array = review("hall");
    array["request"]["object"]["spec"]["room"] = vec![0; 1_500_000].into();
    let (large, small) = (array.to_string(), review("hall").to_string());
    let before = resident_mib();
    let mut many = futures::future::join_all((0..20).map(|_| post(&server, "/defaulting", large.as_bytes())));
    let (mut peak, mut answered) = (0, 0);
    let codes = loop {
        tokio::select! {
            done = &mut many => break done.into_iter().map(|(code, _)| code).collect::<Vec<_>>(),
            (code, message) = post(&server, "/defaulting", small.as_bytes()) => {
                assert_eq!(code, 200, "{message}");
                (peak, answered) = (peak.max(resident_mib().saturating_sub(before)), answered + 1);
            }
        }
    };
    println!(
        "20 bodies of {} bytes: {codes:?}, {peak} MiB, those of the clients included; {answered} other requests answered",
        large.len()
    );
    assert!(codes.iter().all(|code| [200, 408, 504].contains(code)) && codes.contains(&200), "{codes:?}");
    assert!(answered > 0 && peak < 700, "{answered} other requests, {peak} MiB");
}

#[tokio::test]
async fn large_bodies_that_exceed_the_budget_together_are_all_answered() {
    let server = serve(lamp_webhook(Limits {
        bodies: 1 << 20,
        receive_timeout: Duration::from_secs(10),
        ..short_limits()
    }))
    .await;
    let large = review(&"r".repeat(900 << 10)).to_string();
    let small = review("hall").to_string();
    let many = (0..16).map(|n| {
        let body = if n % 2 == 0 { &large } else { &small };
        post(&server, "/defaulting", body.as_bytes())
    });
    let answers = futures::future::join_all(many).await;
    let refused: Vec<_> = answers.into_iter().filter(|(code, _)| *code != 200).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test]
async fn a_small_request_does_not_wait_for_large_ones_to_be_decoded() {
    let limits =
        Limits { decoded_bodies: 256 << 10, response_timeout: Duration::from_secs(2), ..short_limits() };
    let server = serve(lamp_webhook(limits)).await;
    let mut large = review("stuck");
    large["request"]["object"]["metadata"]["annotations"] = json!({"large": "x".repeat(300 << 10)});
    let (large, small) = (large.to_string(), review("hall").to_string());
    let path = "/resource-validation";
    let both =
        async || tokio::join!(post(&server, path, large.as_bytes()), post(&server, path, large.as_bytes()));
    let mut both = std::pin::pin!(both());
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut both).await.is_err());
    tokio::select! {
        biased;
        _ = &mut both => panic!("the large requests were answered first"),
        (code, message) = post(&server, path, small.as_bytes()) => assert_eq!(code, 200, "{message}"),
    }
    let ((first, _), (second, _)) = both.await;
    assert_eq!((first, second), (504, 504));
}

#[tokio::test]
async fn a_body_with_too_large_a_declared_length_is_refused_before_it_arrives() {
    let server = serve(lamp_webhook(short_limits())).await;
    let mut stream = connect(&server).await;
    let head = "POST /defaulting HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    stream.write_all(format!("{head}\r\ncontent-length: 7340033\r\n\r\n").as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(read(&mut stream).await, (413, "the body has more than 7340032 bytes\n".into()));
}

#[tokio::test]
async fn a_body_without_a_declared_length_is_answered_and_limited() {
    let server = serve(lamp_webhook(Limits { bodies: 4 << 20, ..short_limits() })).await;
    let hall = review("hall").to_string();
    for (body, expected) in [(hall, 200), (review(&"r".repeat(7 << 20)).to_string(), 413)] {
        let mut stream = connect(&server).await;
        let head =
            "POST /defaulting HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
        let chunked_request =
            format!("{head}\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        // A server that refuses the body may close the connection before it has read the body.
        let _ = stream.write_all(chunked_request.as_bytes()).await;
        let _ = stream.flush().await;
        assert_eq!(read(&mut stream).await.0, expected);
    }
}

#[tokio::test]
async fn requests_are_answered_if_limits_are_unlimited() {
    let unlimited = Duration::MAX;
    let limits = [
        Limits {
            idle_timeout: unlimited,
            quiet_period: unlimited,
            connections: usize::MAX,
            ..short_limits()
        },
        Limits {
            body: usize::MAX,
            bodies: usize::MAX,
            decoded_bodies: usize::MAX,
            quiet_period: unlimited,
            ..short_limits()
        },
        Limits {
            receive_timeout: unlimited,
            response_timeout: unlimited,
            quiet_period: unlimited,
            ..short_limits()
        },
    ];
    let body = review("hall").to_string();
    for limits in limits {
        let mut server = serve(lamp_webhook(limits)).await;
        assert_eq!(post(&server, "/defaulting", body.as_bytes()).await.0, 200);
        server.stop();
        assert_eq!(post(&server, "/resource-validation", body.as_bytes()).await.0, 200);
        let probe = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
        eventually("the probe to fail", Duration::from_secs(5), async || {
            send(&mut connect(&server).await, probe, b"").await.0 == 503
        })
        .await;
    }
}

#[tokio::test]
async fn tls_1_2_is_refused() {
    let server = serve(lamp_webhook(short_limits())).await;
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let refused = tls_client(&server.ca, &TLS12).connect(server.address.ip().into(), tcp).await.unwrap_err();
    assert!(refused.to_string().contains("ProtocolVersion"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_disconnected_and_do_not_block_others() {
    let _lock = MEASUREMENT_LOCK.lock().await;
    let server =
        serve(lamp_webhook(Limits { receive_timeout: Duration::from_secs(5), ..short_limits() })).await;
    let slow = (0..500).map(|n| {
        let (connector, address) = (tls_client(&server.ca, &TLS13), server.address);
        tokio::spawn(async move {
            let tcp = TcpStream::connect(address).await.unwrap();
            let Ok(mut stream) = connector.connect(address.ip().into(), tcp).await else { return };
            // Even clients send the head at once and the body slowly. Odd clients send the head slowly.
            if n % 2 == 0 {
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
        })
    });
    let slow: Vec<_> = slow.collect();
    let (start, before) = (Instant::now(), resident_mib());
    let (mut answered, mut peak) = (0, 0);
    while slow.iter().any(|client| !client.is_finished()) {
        assert!(start.elapsed() < Duration::from_secs(60), "slow clients are still connected");
        let body = review("hall").to_string();
        let (code, _) =
            tokio::time::timeout(Duration::from_secs(10), post(&server, "/defaulting", body.as_bytes()))
                .await
                .unwrap();
        assert_eq!(code, 200);
        answered += 1;
        peak = peak.max(resident_mib().saturating_sub(before));
    }
    let took = start.elapsed();
    println!(
        "500 slow clients disconnected within {took:?} and {peak} MiB, those of the clients included; {answered} other requests answered"
    );
    assert!(answered > 0 && peak < 200, "{peak} MiB");
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_until_another_is_answered() {
    let (begun, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (callback_begun, gate) = (begun.clone(), release.clone());
    let webhook = lamp_webhook(Limits { connections: 2, ..short_limits() }).callback(move |_: Lamp, _| {
        callback_begun.add_permits(1);
        let gate = gate.clone();
        async move { gate.acquire().await.map(|permit| permit.forget()) }
    });
    let server = serve(webhook).await;
    let body = review("hall").to_string();
    let mut blocked_requests = Vec::new();
    for _ in 0..2 {
        blocked_requests
            .push(start_request(&server, "/resource-validation", body.len(), body.as_bytes()).await);
    }
    let _both = begun.acquire_many(2).await.unwrap();
    let mut third = Box::pin(post(&server, "/defaulting", body.as_bytes()));
    let mut fourth = Box::pin(post(&server, "/defaulting", body.as_bytes()));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut third).await.is_err());
    release.add_permits(1);
    assert_eq!(third.await.0, 200);
    assert_eq!(fourth.as_mut().await.0, 200);
    release.add_permits(1);
    for mut stream in blocked_requests {
        assert_eq!(read(&mut stream).await.0, 200);
    }
}

/// Starts a request whose head declares a body of `length` bytes, and sends only the bytes `sent` of the body.
async fn start_request(server: &LocalServer, path: &str, length: usize, sent: &[u8]) -> Stream {
    let mut stream = connect(server).await;
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json");
    let head = format!("{head}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(sent).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

/// Asserts that a review of about 200 kB is answered within two seconds.
async fn assert_answered_promptly(server: &LocalServer) {
    let (start, body) = (Instant::now(), review(&"r".repeat(200_000)).to_string());
    let answer = post(server, "/defaulting", body.as_bytes());
    let answer = tokio::time::timeout(Duration::from_secs(2), answer).await;
    let (code, message) = answer.unwrap_or_else(|_| panic!("no response within {:?}", start.elapsed()));
    assert_eq!(code, 200, "{message}");
}

#[tokio::test]
async fn declared_bodies_that_do_not_arrive_do_not_delay_others() {
    let server = serve(lamp_webhook(Limits::default())).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(start_request(&server, "/defaulting", 7_340_032, b"").await);
    }
    assert_answered_promptly(&server).await;
}

#[tokio::test]
async fn a_declared_conversion_of_32_mib_does_not_delay_others() {
    let webhook = lamp_webhook(Limits::default()).conversion::<crate::bulb::v1alpha1::Bulb>();
    let server = serve(webhook).await;
    let _silent = start_request(&server, "/resource-conversion", 32 << 20, b"").await;
    let _other = start_request(&server, "/resource-conversion", 32 << 20, b"{").await;
    assert_answered_promptly(&server).await;
}

#[tokio::test]
async fn bodies_whose_first_halves_exceed_the_budget_together_are_all_answered() {
    let limits = Limits { bodies: 1 << 20, receive_timeout: Duration::from_secs(10), ..short_limits() };
    let server = serve(lamp_webhook(limits)).await;
    let body = review(&"r".repeat(600 << 10)).to_string();
    let (first, second) = body.as_bytes().split_at(300 << 10);
    let mut halves = Vec::new();
    for _ in 0..6 {
        halves.push(start_request(&server, "/defaulting", body.len(), first).await);
    }
    let answers = halves.into_iter().map(|mut stream| async move {
        stream.write_all(second).await.unwrap();
        stream.flush().await.unwrap();
        read(&mut stream).await.0
    });
    assert_eq!(futures::future::join_all(answers).await, [200; 6]);
}

#[tokio::test]
async fn silent_connections_do_not_shut_out_others() {
    let server = serve(lamp_webhook(Limits { connections: 8, ..Limits::default() })).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(connect(&server).await);
    }
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
    let closed = tokio::time::timeout(Duration::from_secs(10), silent.read_u8()).await;
    assert!(closed.is_ok_and(|read| read.is_err()), "still open after {:?}", start.elapsed());
}

#[tokio::test]
async fn invalid_requests_are_counted_and_not_logged_as_warnings() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let server = serve(lamp_webhook(short_limits())).await;
    for _ in 0..10 {
        assert_eq!(post(&server, "/defaulting", b"no review").await.0, 400);
    }
    assert_eq!(server.counter("reknit_webhook_requests_total", "400"), 10.0);
    assert_eq!(String::from_utf8(log.0.lock().unwrap().clone()).unwrap(), "");
}

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
    tokio::time::timeout(Duration::from_secs(10), &mut server.task).await.unwrap().unwrap();
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
        assert!(start.elapsed() < Duration::from_secs(10), "the webhook has not ended");
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
    eventually("the listener to close", Duration::from_secs(5), async || {
        TcpStream::connect(server.address).await.is_err()
    })
    .await;
    let head = "POST /defaulting HTTP/1.1\r\ncontent-type: application/json";
    assert_eq!(send(&mut connected, head, review("hall").to_string().as_bytes()).await.0, 200);
    tokio::time::timeout(Duration::from_secs(10), &mut server.task).await.unwrap().unwrap();
}
