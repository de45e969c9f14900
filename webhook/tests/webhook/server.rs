//! Tests of the TLS server: its answers, its limits and draining.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::lamp::Lamp;
use crate::local_server::{Served, serve, tls_client};
use crate::memory::{MEASURING, resident};
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

fn webhook(limits: Limits) -> Webhook {
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

/// Limits that are short enough for tests.
fn quick() -> Limits {
    Limits { receive: Duration::from_secs(1), quiet: Duration::from_millis(200), ..Limits::default() }
}

async fn connect(served: &Served) -> Stream {
    let tcp = TcpStream::connect(served.address).await.unwrap();
    tls_client(&served.ca, &TLS13).connect(served.address.ip().into(), tcp).await.unwrap()
}

/// Sends a request that closes the connection, and reads the answer.
async fn send(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), head: &str, body: &[u8]) -> (u16, String) {
    let head =
        format!("{head}\r\nhost: webhook\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    // A server that refuses the head may close the connection before it reads the body.
    let _ = stream.write_all(body).await;
    let _ = stream.flush().await;
    read(stream).await
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> (u16, String) {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        answer.extend_from_slice(&buffer[..count]);
    }
    let text = String::from_utf8(answer).unwrap();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

async fn post(served: &Served, path: &str, body: &[u8]) -> (u16, String) {
    let head = format!("POST {path} HTTP/1.1\r\ncontent-type: application/json");
    send(&mut connect(served).await, &head, body).await
}

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
    let served = serve(webhook(quick())).await;
    let (code, body) = post(&served, "/resource-validation", review("").to_string().as_bytes()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (code, &answer["kind"], &answer["apiVersion"]),
        (200, &json!("AdmissionReview"), &json!("admission.k8s.io/v1"))
    );
    assert_eq!((&answer["response"]["uid"], &answer["response"]["allowed"]), (&json!("u1"), &json!(false)));
    let status = &answer["response"]["status"];
    assert_eq!(status["message"], "validation failed: missing field(s): spec.room");
    assert_eq!((&status["reason"], &status["code"]), (&json!("BadRequest"), &json!(400)));
    assert_eq!(served.counted("reknit_webhook_requests_total", "false"), 1.0);
}

#[tokio::test]
async fn invalid_requests_get_the_documented_status() {
    let served = serve(webhook(quick())).await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep = review("hall").to_string().replace("\"hall\"", &deep);
    let mut array = review("hall");
    array["request"]["object"]["spec"]["room"] = vec![0; 1_000_000].into();
    let whole = review("hall").to_string();
    let unread = review("hall").to_string().replacen("\"uid\"", "\"unread\":\"?\",\"uid\"", 1);
    let unread = unread.bytes().map(|byte| if byte == b'?' { 0xff } else { byte }).collect();
    let bodies: [(&str, Vec<u8>, u16, &str); 7] = [
        ("empty", vec![], 400, "could not decode body: "),
        ("truncated", whole.as_bytes()[..whole.len() - 9].to_vec(), 400, "could not decode body: "),
        ("10 MiB", vec![b' '; 10 << 20], 413, "the body has more than 7340032 bytes"),
        ("10,000 deep", deep.into_bytes(), 400, "could not decode body: recursion limit exceeded"),
        ("no UTF-8", b"{\"kind\": \"\xff\"}".to_vec(), 400, "could not decode body: "),
        ("no UTF-8 in a field that is not read", unread, 400, "could not decode body: invalid utf-8"),
        ("a million items", array.to_string().into_bytes(), 200, "{\"apiVersion\":\"admission.k8s.io/v1\""),
    ];
    for (what, body, code, text) in bodies {
        let (got, message) = post(&served, "/defaulting", &body).await;
        assert!((got, message.starts_with(text)) == (code, true), "{what}: {got} {message}");
    }
    let other =
        send(&mut connect(&served).await, "POST /defaulting HTTP/1.1\r\ncontent-type: text/yaml", b"a: b")
            .await;
    assert_eq!(other.0, 415);
    let nowhere = post(&served, "/nowhere", b"{}").await;
    assert_eq!(nowhere, (400, "no controller registered for: /nowhere\n".into()));
}

#[tokio::test]
async fn a_panic_in_code_of_a_kind_is_answered_and_counted() {
    let served = serve(webhook(quick())).await;
    let (code, message) = post(&served, "/resource-validation", review("panic").to_string().as_bytes()).await;
    assert_eq!(code, 500);
    assert!(message.starts_with("panicked: "), "{message}");
    assert_eq!(served.counted("reknit_webhook_panics_total", "/resource-validation"), 1.0);
    assert_eq!(post(&served, "/resource-validation", review("hall").to_string().as_bytes()).await.0, 200);
}

#[tokio::test]
async fn a_late_answer_is_504() {
    let limits = Limits { answer: Duration::from_millis(100), ..quick() };
    let webhook =
        webhook(limits).callback(async |_: Lamp, _| std::future::pending::<Result<(), String>>().await);
    let served = serve(webhook).await;
    assert_eq!(post(&served, "/resource-validation", review("hall").to_string().as_bytes()).await.0, 504);
}

#[tokio::test]
async fn slow_code_is_504_and_does_not_delay_others() {
    let limits = Limits { answer: Duration::from_millis(500), ..quick() };
    let served = serve(webhook(limits)).await;
    let (stuck, fine) = (review("stuck").to_string(), review("hall").to_string());
    let answers = (0..16).map(|n| {
        let body = if n % 2 == 0 { &stuck } else { &fine };
        post(&served, "/resource-validation", body.as_bytes())
    });
    for (n, (code, message)) in futures::future::join_all(answers).await.into_iter().enumerate() {
        assert_eq!(code, if n % 2 == 0 { 504 } else { 200 }, "{message}");
    }
}

#[tokio::test]
async fn probes_fail_while_stuck_code_keeps_requests_from_being_answered() {
    let limits = Limits { answer: Duration::from_millis(200), work: 64 << 10, ..quick() };
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let webhook = webhook(limits).config_parser("config-gate", move |_| {
        let _ = gate.lock().unwrap().recv();
        Ok(())
    });
    let (health, served) = (webhook.health(), serve(webhook).await);
    let probe = async || {
        let head = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
        send(&mut connect(&served).await, head, b"").await
    };
    let hall = review("hall").to_string();
    assert_eq!(post(&served, "/resource-validation", hall.as_bytes()).await.0, 200);
    assert_eq!((probe().await.0, health.stuck()), (200, None));
    let mut gated = review("hall");
    gated["request"]["kind"] = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    gated["request"]["object"] =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config-gate"}});
    assert_eq!(post(&served, "/config-validation", gated.to_string().as_bytes()).await.0, 504);
    assert_eq!(post(&served, "/resource-validation", hall.as_bytes()).await.0, 504);
    eventually("the probe to fail", Duration::from_secs(5), async || {
        let (code, message) = probe().await;
        let stuck = code == 503 && message.starts_with("code has been running for ");
        if stuck { Ok(()) } else { Err(format!("{code} {message}")) }
    })
    .await;
    assert!(health.stuck().unwrap() > Duration::from_millis(600));
    drop(release);
    eventually("the probe to succeed", Duration::from_secs(5), async || probe().await.0 == 200).await;
    assert_eq!(post(&served, "/resource-validation", hall.as_bytes()).await.0, 200);
}

#[tokio::test]
async fn a_blocking_callback_does_not_delay_others_and_counts_as_stuck() {
    let limits = Limits { answer: Duration::from_millis(500), ..quick() };
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let begun = Arc::new(tokio::sync::Notify::new());
    let begins = begun.clone();
    let webhook = webhook(limits).callback(move |lamp: Lamp, _| {
        if lamp.spec.room == "gate" {
            begins.notify_one();
            let _ = gate.lock().unwrap().recv_timeout(Duration::from_secs(5));
        }
        std::future::ready(Ok::<_, String>(()))
    });
    let (health, served) = (webhook.health(), serve(webhook).await);
    let (gated, hall) = (review("gate").to_string(), review("hall").to_string());
    let blocked = async {
        tokio::join!(post(&served, "/resource-validation", gated.as_bytes()), async {
            begun.notified().await;
            assert_eq!(post(&served, "/resource-validation", hall.as_bytes()).await.0, 200);
            let head = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
            assert_eq!(send(&mut connect(&served).await, head, b"").await.0, 200);
            assert_eq!(health.stuck(), None);
        })
    };
    assert_eq!(blocked.await.0.0, 504);
    eventually("the callback to count as stuck", Duration::from_secs(3), async || health.stuck().is_some())
        .await;
    drop(release);
    eventually("the callback to end", Duration::from_secs(5), async || health.stuck().is_none()).await;
}

#[tokio::test]
async fn a_callback_may_wait_for_another_answer_of_the_webhook() {
    let released = Arc::new(tokio::sync::Notify::new());
    let release = released.clone();
    let webhook = webhook(Limits { work: 64 << 10, ..quick() }).callback(move |_: Lamp, _| {
        let release = release.clone();
        async move {
            release.notified().await;
            Ok::<_, String>(())
        }
    });
    let (served, hall) = (serve(webhook).await, review("hall").to_string());
    let (waited, ()) = tokio::join!(post(&served, "/resource-validation", hall.as_bytes()), async {
        assert_eq!(post(&served, "/defaulting", hall.as_bytes()).await.0, 200);
        released.notify_one();
    });
    assert_eq!(waited.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_its_answer_is_cut_off_and_frees_its_bytes() {
    let limits = Limits { body: 20 << 20, bodies: 20 << 20, ..quick() };
    let served = serve(webhook(limits)).await;
    // The answer repeats the uid.
    let mut request = review("hall");
    request["request"]["uid"] = "u".repeat(12 << 20).into();
    let body = request.to_string();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let tcp = socket.connect(served.address).await.unwrap();
    let mut slow_reader =
        tls_client(&served.ca, &TLS13).connect(served.address.ip().into(), tcp).await.unwrap();
    let head = "POST /defaulting HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    slow_reader
        .write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes())
        .await
        .unwrap();
    slow_reader.flush().await.unwrap();
    eventually("the answer", Duration::from_secs(10), async || {
        served.counted("reknit_webhook_requests_total", "/defaulting") >= 1.0
    })
    .await;
    // The budget has room for one such body at a time.
    eventually("room for another body", Duration::from_secs(10), async || {
        let (code, message) = post(&served, "/defaulting", body.as_bytes()).await;
        if code == 200 { Ok(()) } else { Err(message) }
    })
    .await;
    let (_, got) = read(&mut slow_reader).await;
    assert!(got.len() < 12 << 20, "{} bytes", got.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_bodies_take_little_memory_and_do_not_block_small_ones() {
    let _alone = MEASURING.lock().await;
    let served = serve(webhook(quick())).await;
    let mut array = review("hall");
    array["request"]["object"]["spec"]["room"] = vec![0; 1_500_000].into();
    let (large, small) = (array.to_string(), review("hall").to_string());
    let before = resident();
    let mut many = futures::future::join_all((0..20).map(|_| post(&served, "/defaulting", large.as_bytes())));
    let (mut most, mut answered) = (0, 0);
    let codes = loop {
        tokio::select! {
            done = &mut many => break done.into_iter().map(|(code, _)| code).collect::<Vec<_>>(),
            (code, message) = post(&served, "/defaulting", small.as_bytes()) => {
                assert_eq!(code, 200, "{message}");
                (most, answered) = (most.max(resident().saturating_sub(before)), answered + 1);
            }
        }
    };
    println!(
        "20 bodies of {} bytes: {codes:?}, {most} MiB, theirs included; {answered} others answered",
        large.len()
    );
    assert!(codes.iter().all(|code| [200, 408, 504].contains(code)) && codes.contains(&200), "{codes:?}");
    assert!(answered > 0 && most < 700, "{answered} others, {most} MiB");
}

#[tokio::test]
async fn large_bodies_that_exceed_the_budget_together_are_all_answered() {
    let served =
        serve(webhook(Limits { bodies: 1 << 20, receive: Duration::from_secs(10), ..quick() })).await;
    let large = review(&"r".repeat(900 << 10)).to_string();
    let small = review("hall").to_string();
    let many = (0..16).map(|n| {
        let body = if n % 2 == 0 { &large } else { &small };
        post(&served, "/defaulting", body.as_bytes())
    });
    let answers = futures::future::join_all(many).await;
    let refused: Vec<_> = answers.into_iter().filter(|(code, _)| *code != 200).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test]
async fn a_small_request_does_not_wait_for_large_ones_to_be_decoded() {
    let limits = Limits { work: 256 << 10, answer: Duration::from_secs(2), ..quick() };
    let served = serve(webhook(limits)).await;
    let mut large = review("stuck");
    large["request"]["object"]["metadata"]["annotations"] = json!({"large": "x".repeat(300 << 10)});
    let (large, small) = (large.to_string(), review("hall").to_string());
    let path = "/resource-validation";
    let two =
        async || tokio::join!(post(&served, path, large.as_bytes()), post(&served, path, large.as_bytes()));
    let mut two = std::pin::pin!(two());
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut two).await.is_err());
    tokio::select! {
        biased;
        _ = &mut two => panic!("the large ones were answered first"),
        (code, message) = post(&served, path, small.as_bytes()) => assert_eq!(code, 200, "{message}"),
    }
    let ((one, _), (other, _)) = two.await;
    assert_eq!((one, other), (504, 504));
}

#[tokio::test]
async fn a_body_with_too_large_a_declared_length_is_refused_before_it_arrives() {
    let served = serve(webhook(quick())).await;
    let mut stream = connect(&served).await;
    let head = "POST /defaulting HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    stream.write_all(format!("{head}\r\ncontent-length: 7340033\r\n\r\n").as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(read(&mut stream).await, (413, "the body has more than 7340032 bytes\n".into()));
}

#[tokio::test]
async fn a_body_without_a_declared_length_is_answered_and_limited() {
    let served = serve(webhook(Limits { bodies: 4 << 20, ..quick() })).await;
    let hall = review("hall").to_string();
    for (body, expected) in [(hall, 200), (review(&"r".repeat(7 << 20)).to_string(), 413)] {
        let mut stream = connect(&served).await;
        let head =
            "POST /defaulting HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
        let chunked =
            format!("{head}\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        // A server that refuses the body may close the connection before it reads it.
        let _ = stream.write_all(chunked.as_bytes()).await;
        let _ = stream.flush().await;
        assert_eq!(read(&mut stream).await.0, expected);
    }
}

#[tokio::test]
async fn requests_are_answered_without_limits() {
    let forever = Duration::MAX;
    let limits = [
        Limits { idle: forever, quiet: forever, connections: usize::MAX, ..quick() },
        Limits { body: usize::MAX, bodies: usize::MAX, work: usize::MAX, quiet: forever, ..quick() },
        Limits { receive: forever, answer: forever, quiet: forever, ..quick() },
    ];
    let body = review("hall").to_string();
    for limits in limits {
        let mut served = serve(webhook(limits)).await;
        assert_eq!(post(&served, "/defaulting", body.as_bytes()).await.0, 200);
        served.stop();
        assert_eq!(post(&served, "/resource-validation", body.as_bytes()).await.0, 200);
        let probe = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
        eventually("the probe to fail", Duration::from_secs(5), async || {
            send(&mut connect(&served).await, probe, b"").await.0 == 503
        })
        .await;
    }
}

#[tokio::test]
async fn tls_1_2_is_refused() {
    let served = serve(webhook(quick())).await;
    let tcp = TcpStream::connect(served.address).await.unwrap();
    let refused = tls_client(&served.ca, &TLS12).connect(served.address.ip().into(), tcp).await.unwrap_err();
    assert!(refused.to_string().contains("ProtocolVersion"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_cut_off_and_do_not_block_others() {
    let _alone = MEASURING.lock().await;
    let served = serve(webhook(Limits { receive: Duration::from_secs(5), ..quick() })).await;
    let slow = (0..500).map(|n| {
        let (connector, address) = (tls_client(&served.ca, &TLS13), served.address);
        tokio::spawn(async move {
            let tcp = TcpStream::connect(address).await.unwrap();
            let Ok(mut stream) = connector.connect(address.ip().into(), tcp).await else { return };
            // Half of them are slow with the head, half with the body.
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
    let (start, before) = (Instant::now(), resident());
    let (mut answered, mut most) = (0, 0);
    while slow.iter().any(|client| !client.is_finished()) {
        assert!(start.elapsed() < Duration::from_secs(60), "slow clients are still connected");
        let body = review("hall").to_string();
        let (code, _) =
            tokio::time::timeout(Duration::from_secs(10), post(&served, "/defaulting", body.as_bytes()))
                .await
                .unwrap();
        assert_eq!(code, 200);
        answered += 1;
        most = most.max(resident().saturating_sub(before));
    }
    let took = start.elapsed();
    println!(
        "500 slow clients cut off within {took:?} and {most} MiB, theirs included; {answered} others answered"
    );
    assert!(answered > 0 && most < 200, "{most} MiB");
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_while_all_others_are_answered() {
    let (begun, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, gate) = (begun.clone(), release.clone());
    let webhook = webhook(Limits { connections: 2, ..quick() }).callback(move |_: Lamp, _| {
        begins.add_permits(1);
        let gate = gate.clone();
        async move { gate.acquire().await.map(|permit| permit.forget()) }
    });
    let served = serve(webhook).await;
    let body = review("hall").to_string();
    let mut busy = Vec::new();
    for _ in 0..2 {
        busy.push(begin(&served, "/resource-validation", body.len(), body.as_bytes()).await);
    }
    let _both = begun.acquire_many(2).await.unwrap();
    let mut third = Box::pin(post(&served, "/defaulting", body.as_bytes()));
    let mut other = Box::pin(post(&served, "/defaulting", body.as_bytes()));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut third).await.is_err());
    release.add_permits(1);
    assert_eq!(third.await.0, 200);
    assert_eq!(other.as_mut().await.0, 200);
    release.add_permits(1);
    for mut stream in busy {
        assert_eq!(read(&mut stream).await.0, 200);
    }
}

/// Starts a request whose head declares a body of `length` bytes, and sends the part `sent` of it.
async fn begin(served: &Served, path: &str, length: usize, sent: &[u8]) -> Stream {
    let mut stream = connect(served).await;
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json");
    let head = format!("{head}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(sent).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

/// Asserts that a review of about 200 kB is answered within two seconds.
async fn assert_answered_promptly(served: &Served) {
    let (start, body) = (Instant::now(), review(&"r".repeat(200_000)).to_string());
    let answer = post(served, "/defaulting", body.as_bytes());
    let answer = tokio::time::timeout(Duration::from_secs(2), answer).await;
    let (code, message) = answer.unwrap_or_else(|_| panic!("no answer within {:?}", start.elapsed()));
    assert_eq!(code, 200, "{message}");
}

#[tokio::test]
async fn declared_bodies_that_do_not_arrive_do_not_delay_others() {
    let served = serve(webhook(Limits::default())).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(begin(&served, "/defaulting", 7_340_032, b"").await);
    }
    assert_answered_promptly(&served).await;
}

#[tokio::test]
async fn a_declared_conversion_of_32_mib_does_not_delay_others() {
    let webhook = webhook(Limits::default()).conversion::<crate::bulb::v1alpha1::Bulb>();
    let served = serve(webhook).await;
    let _silent = begin(&served, "/resource-conversion", 32 << 20, b"").await;
    let _other = begin(&served, "/resource-conversion", 32 << 20, b"{").await;
    assert_answered_promptly(&served).await;
}

#[tokio::test]
async fn bodies_that_fill_the_budget_with_a_part_each_are_all_answered() {
    let limits = Limits { bodies: 1 << 20, receive: Duration::from_secs(10), ..quick() };
    let served = serve(webhook(limits)).await;
    let body = review(&"r".repeat(600 << 10)).to_string();
    let (first, second) = body.as_bytes().split_at(300 << 10);
    let mut halves = Vec::new();
    for _ in 0..6 {
        halves.push(begin(&served, "/defaulting", body.len(), first).await);
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
    let served = serve(webhook(Limits { connections: 8, ..Limits::default() })).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(connect(&served).await);
    }
    assert_answered_promptly(&served).await;
}

#[tokio::test]
async fn connections_without_a_handshake_or_a_body_do_not_shut_out_others() {
    let served = serve(webhook(Limits { connections: 8, ..Limits::default() })).await;
    let (mut bare, mut headed) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        bare.push(TcpStream::connect(served.address).await.unwrap());
        headed.push(begin(&served, "/defaulting", 900, b"").await);
    }
    assert_answered_promptly(&served).await;
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_the_receive_limit() {
    let served = serve(webhook(quick())).await;
    let (mut silent, start) = (connect(&served).await, Instant::now());
    let closed = tokio::time::timeout(Duration::from_secs(10), silent.read_u8()).await;
    assert!(closed.is_ok_and(|read| read.is_err()), "still open after {:?}", start.elapsed());
}

#[tokio::test]
async fn invalid_requests_are_counted_and_not_logged_as_warnings() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let served = serve(webhook(quick())).await;
    for _ in 0..10 {
        assert_eq!(post(&served, "/defaulting", b"no review").await.0, 400);
    }
    assert_eq!(served.counted("reknit_webhook_requests_total", "400"), 10.0);
    assert_eq!(String::from_utf8(log.0.lock().unwrap().clone()).unwrap(), "");
}

#[tokio::test]
async fn a_draining_webhook_fails_probes_answers_requests_and_closes_when_quiet() {
    let mut served = serve(webhook(Limits { quiet: Duration::from_secs(2), ..quick() })).await;
    let probe = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
    assert_eq!(send(&mut connect(&served).await, probe, b"").await.0, 200);
    served.stop();
    let answer = eventually("the probe's answer", Duration::from_secs(2), async || {
        let (code, message) = send(&mut connect(&served).await, probe, b"").await;
        if code == 503 { Ok(message) } else { Err(code) }
    });
    assert_eq!(answer.await, "shutting down\n");
    assert_eq!(post(&served, "/defaulting", review("hall").to_string().as_bytes()).await.0, 200);
    tokio::time::timeout(Duration::from_secs(10), &mut served.served).await.unwrap().unwrap();
    assert!(TcpStream::connect(served.address).await.is_err());
}

#[tokio::test]
async fn a_draining_webhook_closes_kept_connections_after_an_answer() {
    let mut served = serve(webhook(Limits { quiet: Duration::from_secs(2), ..quick() })).await;
    let mut kept = connect(&served).await;
    let body = review("hall").to_string();
    let length = body.len();
    let request = format!(
        "POST /defaulting HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut buffer = vec![0; 64 * 1024];
    kept.write_all(request.as_bytes()).await.unwrap();
    let count = kept.read(&mut buffer).await.unwrap();
    let head = String::from_utf8_lossy(&buffer[..count]).into_owned();
    assert!(head.starts_with("HTTP/1.1 200") && !head.contains("connection: close"), "{head}");
    served.stop();
    let probe = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
    eventually("the probe's answer", Duration::from_secs(2), async || {
        send(&mut connect(&served).await, probe, b"").await.0 == 503
    })
    .await;
    kept.write_all(request.as_bytes()).await.unwrap();
    let count = kept.read(&mut buffer).await.unwrap();
    let head = String::from_utf8_lossy(&buffer[..count]).into_owned();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("connection: close"), "{head}");
    assert_eq!(read(&mut kept).await, (0, String::new()), "the end of the connection");
}

#[tokio::test]
async fn a_draining_webhook_ends_under_constant_requests() {
    let mut served = serve(webhook(Limits { quiet: Duration::from_secs(1), ..quick() })).await;
    served.stop();
    let (start, body) = (Instant::now(), review("hall").to_string());
    while !served.served.is_finished() {
        assert!(start.elapsed() < Duration::from_secs(10), "the webhook has not ended");
        let Ok(tcp) = TcpStream::connect(served.address).await else { continue };
        let connected = tls_client(&served.ca, &TLS13).connect(served.address.ip().into(), tcp).await;
        let Ok(mut stream) = connected else { continue };
        let head = "POST /defaulting HTTP/1.1\r\ncontent-type: application/json";
        assert_eq!(send(&mut stream, head, body.as_bytes()).await.0, 200);
    }
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_client_connected_before_the_stop_is_answered_after_it() {
    let mut served = serve(webhook(Limits { quiet: Duration::ZERO, ..quick() })).await;
    let mut connected = connect(&served).await;
    served.stop();
    eventually("the listener to close", Duration::from_secs(5), async || {
        TcpStream::connect(served.address).await.is_err()
    })
    .await;
    let head = "POST /defaulting HTTP/1.1\r\ncontent-type: application/json";
    assert_eq!(send(&mut connected, head, review("hall").to_string().as_bytes()).await.0, 200);
    tokio::time::timeout(Duration::from_secs(10), &mut served.served).await.unwrap().unwrap();
}
