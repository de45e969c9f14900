//! Code of a webhook that is slow, blocks or never ends.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use reknit_apis::FieldError;
use reknit_testing::eventually;
use reknit_webhook::{Limits, internal};
use serde_json::{Value, json};

use super::{connect, lamp_webhook, post, review, send, short_limits};
use crate::{
    lamp::{Lamp, Rule},
    local_server::serve,
    memory::in_own_process,
};

#[tokio::test]
async fn a_request_whose_validator_never_ends_is_denied_with_504_before_the_client_gives_up() {
    let limits = Limits { validator_timeout: Duration::from_millis(100), ..short_limits() };
    let server = serve(lamp_webhook(limits).validator(Rule(async |_| std::future::pending().await))).await;
    let (code, body) = post(&server, "/resource-validation", review("hall").to_string().as_bytes()).await;
    let response: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &response["response"]["status"]["code"]), (200, &json!(504)), "{body}");
    assert!(body.contains("took longer than 100ms"), "{body}");
}

#[tokio::test]
async fn reviews_beyond_a_limit_are_refused_with_503_while_others_wait_for_validators() {
    let release = Arc::new(tokio::sync::Notify::new());
    let (waiting, released) = (Arc::new(AtomicUsize::new(0)), release.clone());
    let count = waiting.clone();
    let rule = Rule(move |_| {
        let (count, released) = (count.clone(), released.clone());
        async move {
            let release = released.notified();
            count.fetch_add(1, Ordering::SeqCst);
            release.await;
            Ok(FieldError::none())
        }
    });
    let limits = Limits { decoded_bodies: 64 << 10, ..short_limits() };
    let (server, mut large) = (serve(lamp_webhook(limits).validator(rule)).await, review("hall"));
    large["request"]["object"]["metadata"]["annotations"] = json!({"text": "x".repeat(50 << 10)});
    let large = large.to_string();
    // Each takes about 300 KiB, and the cluster-scoped objects of this client may hold 640 KiB.
    let refused = AtomicUsize::new(0);
    let answers = (0..20).map(async |_| {
        let (code, message) = post(&server, "/resource-validation", large.as_bytes()).await;
        if code == 503 && message.contains("too many reviews wait") {
            refused.fetch_add(1, Ordering::SeqCst);
        }
        code
    });
    let counts = || (waiting.load(Ordering::SeqCst), refused.load(Ordering::SeqCst));
    let release_all = async {
        let all = async || counts().0 + counts().1 == 20;
        eventually("all reviews to wait or be refused", Duration::from_secs(4), all).await;
        release.notify_waiters();
    };
    let (codes, ()) = tokio::join!(futures::future::join_all(answers), release_all);
    let allowed = codes.iter().filter(|code| **code == 200).count();
    assert!((1..4).contains(&allowed) && counts() == (allowed, 20 - allowed), "{codes:?}");
    let again = post(&server, "/resource-validation", large.as_bytes());
    let release_again = async {
        let one = async || counts().0 == allowed + 1;
        eventually("another review to wait", Duration::from_secs(4), one).await;
        release.notify_waiters();
    };
    assert_eq!(tokio::join!(again, release_again).0.0, 200);
}

/// The API server sends the reviews of all namespaces from one address.
#[tokio::test]
async fn waiting_reviews_of_one_namespace_leave_room_for_those_of_another() {
    let release = Arc::new(tokio::sync::Notify::new());
    let (waiting, released) = (Arc::new(AtomicUsize::new(0)), release.clone());
    let count = waiting.clone();
    let rule = Rule(move |lamp: Lamp| {
        let (count, released, waits) = (count.clone(), released.clone(), lamp.spec.room == "cellar");
        async move {
            let release = released.notified();
            count.fetch_add(1, Ordering::SeqCst);
            if waits {
                release.await;
            }
            Ok(FieldError::none())
        }
    });
    let limits = Limits { decoded_bodies: 64 << 10, ..short_limits() };
    let server = serve(lamp_webhook(limits).validator(rule)).await;
    let of_namespace = |namespace: &str, room: &str| {
        let mut review = review(room);
        review["request"]["namespace"] = namespace.into();
        review["request"]["object"]["metadata"]["annotations"] = json!({"text": "x".repeat(30 << 10)});
        review.to_string()
    };
    let (red, blue) = (of_namespace("red", "cellar"), of_namespace("blue", "hall"));
    let refused = AtomicUsize::new(0);
    let answers = (0..20).map(async |_| {
        if post(&server, "/resource-validation", red.as_bytes()).await.0 == 503 {
            refused.fetch_add(1, Ordering::SeqCst);
        }
    });
    let other = async {
        let all = async || waiting.load(Ordering::SeqCst) + refused.load(Ordering::SeqCst) == 20;
        eventually("all reviews to wait or be refused", Duration::from_secs(4), all).await;
        let answer = post(&server, "/resource-validation", blue.as_bytes()).await;
        release.notify_waiters();
        answer
    };
    let (_, (code, message)) = tokio::join!(futures::future::join_all(answers), other);
    assert_eq!(code, 200, "{message}");
    assert!(refused.into_inner() > 0);
}

#[tokio::test]
async fn a_validator_that_fails_denies_with_500_and_its_error() {
    let server = serve(lamp_webhook(short_limits()).validator(Rule(async |_| Err("no answer".into())))).await;
    let (_, body) = post(&server, "/resource-validation", review("hall").to_string().as_bytes()).await;
    let response: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(response["response"]["status"]["code"], 500, "{body}");
    assert_eq!(response["response"]["status"]["message"], "validation failed: no answer", "{body}");
}

#[test]
fn slow_code_gets_504_and_does_not_delay_other_requests() {
    in_own_process(async || {
        let limits = Limits { response_timeout: Duration::from_secs(2), ..short_limits() };
        let server = serve(lamp_webhook(limits)).await;
        let (stuck, fine) = (review("stuck").to_string(), review("hall").to_string());
        let answers = (0..16).map(|n| {
            let body = if n % 2 == 0 { &stuck } else { &fine };
            post(&server, "/resource-validation", body.as_bytes())
        });
        for (n, (code, message)) in futures::future::join_all(answers).await.into_iter().enumerate() {
            assert_eq!(code, if n % 2 == 0 { 504 } else { 200 }, "{message}");
        }
    });
}

#[test]
fn probes_fail_while_stuck_code_blocks_other_requests() {
    in_own_process(async || {
        let limits = Limits {
            response_timeout: Duration::from_millis(500),
            decoded_bodies: 64 << 10,
            ..short_limits()
        };
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let webhook = internal::validate_config(lamp_webhook(limits), "config-gate", move |_| {
            let _ = gate.lock().unwrap().recv();
            Ok(())
        });
        let (health, server) = (internal::health(&webhook), serve(webhook).await);
        let probe = async || {
            let head = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
            send(&mut connect(&server).await, head, b"").await
        };
        let hall = review("hall").to_string();
        assert_eq!(post(&server, "/resource-validation", hall.as_bytes()).await.0, 200);
        assert_eq!((probe().await.0, health.stuck_for()), (200, None));
        let mut gated = review("hall");
        gated["request"]["kind"] = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
        gated["request"]["object"] =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config-gate"}});
        assert_eq!(post(&server, "/config-validation", gated.to_string().as_bytes()).await.0, 504);
        assert_eq!(post(&server, "/resource-validation", hall.as_bytes()).await.0, 504);
        eventually("the probe to fail", Duration::from_secs(20), async || {
            let (code, message) = probe().await;
            let stuck = code == 503
                && message.starts_with("a defaulting or validation function has been running for ");
            if stuck { Ok(()) } else { Err(format!("{code} {message}")) }
        })
        .await;
        assert!(health.stuck_for().unwrap() > Duration::from_millis(1500));
        drop(release);
        eventually("the probe to succeed", Duration::from_secs(20), async || probe().await.0 == 200).await;
        assert_eq!(post(&server, "/resource-validation", hall.as_bytes()).await.0, 200);
    });
}

#[tokio::test]
async fn a_validator_may_wait_for_another_request_to_the_webhook() {
    let released = Arc::new(tokio::sync::Notify::new());
    let release = released.clone();
    let webhook =
        lamp_webhook(Limits { decoded_bodies: 64 << 10, ..short_limits() }).validator(Rule(move |_| {
            let release = release.clone();
            async move {
                release.notified().await;
                Ok(FieldError::none())
            }
        }));
    let (server, hall) = (serve(webhook).await, review("hall").to_string());
    let (waited, ()) = tokio::join!(post(&server, "/resource-validation", hall.as_bytes()), async {
        assert_eq!(post(&server, "/defaulting", hall.as_bytes()).await.0, 200);
        released.notify_one();
    });
    assert_eq!(waited.0, 200);
}
