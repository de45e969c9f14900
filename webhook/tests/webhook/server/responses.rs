//! Responses to valid and invalid requests.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use reknit_testing::eventually;
use reknit_webhook::Limits;
use rustls::version::TLS12;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{connect, lamp_webhook, post, review, send, short_limits};
use crate::local_server::{serve, tls_client};

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
    assert_eq!(server.counter("controller_runtime_webhook_admission_responses_total", "422"), 1.0);
}

#[tokio::test]
async fn each_invalid_request_gets_its_status() {
    let server = serve(lamp_webhook(Limits::default())).await;
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
        (
            "no UTF-8 in a field that is not read",
            invalid_unread,
            200,
            "{\"apiVersion\":\"admission.k8s.io/v1\"",
        ),
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
    assert_eq!(unknown_path.0, 400);
    let (begin, advice) =
        ("no controller registered for: /nowhere; ", "wait for the rollout of the webhook\n");
    assert!(unknown_path.1.starts_with(begin) && unknown_path.1.ends_with(advice), "{}", unknown_path.1);
}

#[tokio::test]
async fn an_object_that_is_nested_too_deep_can_be_deleted_and_lose_its_finalizers() {
    let server = serve(lamp_webhook(Limits::default())).await;
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    for (operation, new, old, is_allowed) in [
        ("UPDATE", 200, 200, true),
        ("DELETE", 200, 200, true),
        ("UPDATE", 200, 199, false),
        ("CREATE", 200, 200, false),
    ] {
        let mut review = review("NEW");
        let request = &mut review["request"];
        request["operation"] = json!(operation);
        request["oldObject"] = json!({
            "apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "metadata": {"finalizers": ["example.com/a"]},
            "spec": {"room": "OLD"},
        });
        let body = review.to_string().replace("\"NEW\"", &deep(new)).replace("\"OLD\"", &deep(old));
        for path in ["/defaulting", "/resource-validation"] {
            let (code, answer) = post(&server, path, body.as_bytes()).await;
            assert_eq!(code == 200, is_allowed, "{operation} {path}: {answer}");
            if is_allowed {
                let answer: Value = serde_json::from_str(&answer).unwrap();
                let response = &answer["response"];
                assert_eq!((&response["uid"], &response["allowed"]), (&json!("u1"), &json!(true)));
                assert_eq!((&answer["kind"], &response["patch"]), (&json!("AdmissionReview"), &Value::Null));
            }
        }
    }
}

#[tokio::test]
async fn an_object_whose_status_and_managed_fields_are_nested_too_deep_can_be_changed() {
    let server = serve(lamp_webhook(Limits::default())).await;
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for (watts, is_allowed) in [(40, true), (1000, false)] {
        let mut review = review("hall");
        let request = &mut review["request"];
        request["object"]["spec"]["watts"] = json!(watts);
        request["operation"] = json!("UPDATE");
        request["oldObject"] = json!({
            "apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "metadata": {}, "spec": {"room": "hall"},
        });
        for object in ["object", "oldObject"] {
            request[object]["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:status": "DEEP"}}]);
            request[object]["status"] = json!({"conditions": "DEEP"});
        }
        let body = review.to_string().replace("\"DEEP\"", &deep);
        let (code, answer) = post(&server, "/resource-validation", body.as_bytes()).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((code, &answer["response"]["allowed"]), (200, &json!(is_allowed)), "{answer}");
    }
}

#[tokio::test]
async fn a_panic_in_the_code_of_a_kind_is_answered_with_500_and_counted() {
    let server = serve(lamp_webhook(short_limits())).await;
    let (code, message) = post(&server, "/resource-validation", review("panic").to_string().as_bytes()).await;
    assert_eq!(code, 500);
    assert!(message.starts_with("panicked: "), "{message}");
    assert_eq!(server.counter("controller_runtime_webhook_panics_total", ""), 1.0);
    assert_eq!(post(&server, "/resource-validation", review("hall").to_string().as_bytes()).await.0, 200);
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

impl Log {
    /// Records the log lines of this thread until the guard is dropped.
    fn record(&self) -> tracing::subscriber::DefaultGuard {
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// The API server sends them if a webhook configuration of another release is left.
#[tokio::test]
async fn a_review_at_a_path_that_is_not_served_is_logged_once_a_minute() {
    let log = Log::default();
    let _guard = log.record();
    let server = serve(lamp_webhook(short_limits())).await;
    for path in ["/bindings", "/other"] {
        assert_eq!(post(&server, path, review("hall").to_string().as_bytes()).await.0, 400);
    }
    let log = log.text();
    assert_eq!(log.matches("this program has no webhook at its path").count(), 1, "{log}");
    assert!(log.contains("path=\"/bindings\""), "{log}");
}

/// The API server sends them if the controllers of another release have registered the Kind.
#[tokio::test]
async fn reviews_of_a_kind_of_another_release_are_denied_with_advice_and_logged_once_a_minute() {
    let log = Log::default();
    let _guard = log.record();
    let server = serve(lamp_webhook(short_limits())).await;
    let mut review = review("hall");
    review["request"]["kind"]["kind"] = "Room".into();
    let kind = "unhandled kind: tests.reknit.dev/v1, Kind=Room: ";
    for (path, failed) in
        [("/defaulting", "mutation failed"), ("/resource-validation", "decoding request failed")]
    {
        let (status, answer) = post(&server, path, review.to_string().as_bytes()).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let (response, message) = (&answer["response"], answer["response"]["status"]["message"].as_str());
        assert_eq!(
            (status, &response["allowed"], &response["status"]["code"]),
            (200, &json!(false), &json!(400))
        );
        let message = message.unwrap();
        assert!(message.starts_with(&format!("{failed}: {kind}")), "{message}");
        assert!(
            message
                .ends_with("repeat the request once the webhook is rolled out, or roll the controllers back"),
            "{message}"
        );
    }
    let log = log.text();
    assert_eq!(
        log.matches("refused a review of a Kind that this release does not handle").count(),
        1,
        "{log}"
    );
    assert!(log.contains("kind=tests.reknit.dev/v1, Kind=Room"), "{log}");
}

#[tokio::test]
async fn invalid_requests_are_counted_and_not_logged_as_warnings() {
    let log = Log::default();
    let _guard = log.record();
    let server = serve(lamp_webhook(short_limits())).await;
    for _ in 0..10 {
        assert_eq!(post(&server, "/defaulting", b"no review").await.0, 400);
    }
    assert_eq!(server.counter("controller_runtime_webhook_requests_total", "400"), 10.0);
    assert_eq!(log.text(), "");
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
