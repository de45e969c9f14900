//! Limits on the bodies of requests.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec, Volume};
use reknit_apis::kind;
use reknit_testing::eventually;
use reknit_webhook::{Limits, Webhook};
use rustls::version::TLS13;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::{
    assert_answered_promptly, connect, connect_from, lamp_webhook, post, read, review, send_part,
    short_limits, start_request,
};
use crate::{
    local_server::{serve, tls_client},
    memory::{in_own_process, resident_mib},
};

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
        server.counter("controller_runtime_webhook_requests_total", "/defaulting") >= 1.0
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

#[test]
fn many_large_bodies_take_little_memory_and_do_not_block_small_ones() {
    in_own_process(async || {
        // On a busy machine, a client needs more than the second of the short limits.
        let limits = Limits { receive_timeout: Duration::from_secs(10), ..short_limits() };
        let server = serve(lamp_webhook(limits)).await;
        let mut array = review("hall");
        array["request"]["object"]["spec"]["room"] = vec![0; 1_500_000].into();
        let (large, small) = (array.to_string(), review("hall").to_string());
        let before = resident_mib();
        let mut many =
            futures::future::join_all((0..20).map(|_| post(&server, "/defaulting", large.as_bytes())));
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
    });
}

/// An AdmissionReview whose object has this many entries of managed fields. Each takes about two hundred times its bytes once
/// it is decoded.
fn review_with_entries(entries: usize) -> String {
    let entries = vec![r#"{"fieldsV1":{"f:a":{}}}"#; entries].join(",");
    review("hall")
        .to_string()
        .replace(r#""metadata":{}"#, &format!(r#""metadata":{{"managedFields":[{entries}]}}"#))
}

#[test]
fn bodies_of_many_tiny_objects_take_little_memory() {
    in_own_process(async || {
        let server = serve(lamp_webhook(Limits::default())).await;
        let (large, small) = (review_with_entries(200_000), review_with_entries(2_500));
        let before = resident_mib();
        let (code, message) = post(&server, "/defaulting", large.as_bytes()).await;
        let peak = resident_mib().saturating_sub(before);
        assert!(code == 413 && message.contains("more than 280 MiB"), "{code} {message}");
        let many = (0..60).map(|_| post(&server, "/defaulting", small.as_bytes()));
        let codes: Vec<_> = futures::future::join_all(many).await.into_iter().map(|(code, _)| code).collect();
        let together = resident_mib().saturating_sub(before);
        println!("a body of 200,000 entries: {peak} MiB; 60 bodies of 2,500: {together} MiB, {codes:?}");
        assert!(codes.iter().all(|code| *code == 200), "{codes:?}");
        assert!(peak < 100 && together < 250, "{peak} MiB, {together} MiB");
    });
}

/// A Kind whose objects have large items.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, Default)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Wardrobe", namespaced, schema = "disabled")]
#[serde(default)]
struct WardrobeSpec {
    volumes: Vec<Volume>,
    templates: Vec<PodTemplateSpec>,
    drawers: Vec<Option<Volume>>,
    shelves: BTreeMap<String, Container>,
}

kind!(Wardrobe {});

/// An AdmissionReview of an object with this field.
fn review_of_wardrobe(field: &str, value: &str) -> String {
    let mut review = review("hall");
    let request = &mut review["request"];
    request["kind"]["kind"] = "Wardrobe".into();
    request["object"] =
        json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Wardrobe", "metadata": {}, "spec": {}});
    review.to_string().replace(&format!(r#""{field}":{{}}"#), &format!(r#""{field}":{value}"#))
}

/// Each shape is sent with as many items as are accepted. Its field is that of a whole type, since the memory is that of its
/// struct, however short the text.
#[test]
fn an_accepted_body_of_the_shortest_items_takes_no_more_memory_than_documented() {
    in_own_process(async || {
        let webhook = Webhook::new("demo.reknit.dev").defaulting::<Wardrobe>().limits(Limits::default());
        let server = serve(webhook).await;
        let before = resident_mib();
        for (name, field, open, item, close) in [
            ("owners", "metadata", r#"{"ownerReferences":["#, "{}", "]}"),
            ("volumes", "spec", r#"{"volumes":["#, "{}", "]}"),
            ("named volumes", "spec", r#"{"volumes":["#, r#"{"name":""}"#, "]}"),
            ("templates", "spec", r#"{"templates":["#, "{}", "]}"),
            ("nulls", "spec", r#"{"drawers":["#, "null", "]}"),
            ("a map", "spec", r#"{"shelves":{"#, r#""NUMBER":{}"#, "}}"),
        ] {
            let (mut items, mut peak) = (400_000, 0);
            let code = loop {
                let items_of = |n: usize| item.replace("NUMBER", &n.to_string());
                let list = (0..items).map(items_of).collect::<Vec<_>>().join(",");
                let body = review_of_wardrobe(field, &format!("{open}{list}{close}"));
                let mut answer = std::pin::pin!(post(&server, "/defaulting", body.as_bytes()));
                let mut ticks = tokio::time::interval(Duration::from_millis(5));
                let (code, _) = loop {
                    tokio::select! {
                        answer = &mut answer => break answer,
                        _ = ticks.tick() => peak = peak.max(resident_mib().saturating_sub(before)),
                    }
                };
                if code != 413 {
                    break code;
                }
                (items, peak) = (items * 4 / 5, 0);
            };
            println!("{items} of {name}: {code}, {peak} MiB");
            assert!(code == 200 && peak <= 280, "{items} of {name}: {code}, {peak} MiB");
        }
    });
}

/// Else an object that is stored would keep its finalizers for ever.
#[tokio::test]
async fn an_object_of_too_many_tiny_objects_can_be_deleted_and_lose_its_finalizers() {
    let server = serve(lamp_webhook(Limits { body: 1 << 20, ..Limits::default() })).await;
    let mut body: serde_json::Value = serde_json::from_str(&review_with_entries(20_000)).unwrap();
    let object = body["request"]["object"].clone();
    for (operation, object, old, expected) in [
        ("CREATE", object.clone(), json!(null), 413),
        ("UPDATE", object.clone(), object.clone(), 200),
        ("DELETE", json!(null), object.clone(), 200),
    ] {
        let request = &mut body["request"];
        (request["operation"], request["object"], request["oldObject"]) = (operation.into(), object, old);
        let (code, message) = post(&server, "/resource-validation", body.to_string().as_bytes()).await;
        assert_eq!(code, expected, "{operation}: {message}");
    }
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

#[test]
fn a_small_request_does_not_wait_for_large_ones_to_be_decoded() {
    in_own_process(async || {
        let limits =
            Limits { decoded_bodies: 256 << 10, response_timeout: Duration::from_secs(2), ..short_limits() };
        let server = serve(lamp_webhook(limits)).await;
        let mut large = review("stuck");
        large["request"]["object"]["metadata"]["annotations"] = json!({"large": "x".repeat(300 << 10)});
        let (large, small) = (large.to_string(), review("hall").to_string());
        let path = "/resource-validation";
        let both = async || {
            tokio::join!(post(&server, path, large.as_bytes()), post(&server, path, large.as_bytes()))
        };
        let mut both = std::pin::pin!(both());
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut both).await.is_err());
        tokio::select! {
            biased;
            _ = &mut both => panic!("the large requests were answered first"),
            (code, message) = post(&server, path, small.as_bytes()) => assert_eq!(code, 200, "{message}"),
        }
        let ((first, _), (second, _)) = both.await;
        assert_eq!((first, second), (504, 504));
    });
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
    let server = serve(lamp_webhook(Limits { bodies: 4 << 20, ..Limits::default() })).await;
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
async fn declared_bodies_that_do_not_arrive_do_not_delay_others() {
    let server = serve(lamp_webhook(Limits::default())).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(start_request(&server, "/defaulting", 7_340_032, b"").await);
    }
    assert_answered_promptly(&server).await;
}

/// Each fills its part of the half for small bodies, or of that for large ones, and its end does not come.
#[tokio::test]
async fn unfinished_bodies_that_fill_the_budget_do_not_delay_other_clients() {
    for sent in [64 << 10, 300 << 10] {
        let server = serve(lamp_webhook(Limits { bodies: 1 << 20, ..Limits::default() })).await;
        let mut unfinished = Vec::new();
        for _ in 0..20 {
            let mut stream = connect_from("127.0.0.2", &server).await;
            send_part(&mut stream, "/defaulting", 400 << 10, &vec![b' '; sent]).await;
            unfinished.push(stream);
        }
        assert_answered_promptly(&server).await;
    }
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
