//! Code of a webhook that is slow, blocks or never ends.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use reknit_testing::eventually;
use reknit_webhook::{Limits, internal};
use serde_json::json;

use super::{connect, lamp_webhook, post, review, send, short_limits};
use crate::{lamp::Lamp, local_server::serve};

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
    eventually("the probe to fail", Duration::from_secs(5), async || {
        let (code, message) = probe().await;
        let stuck =
            code == 503 && message.starts_with("a defaulting or validation function has been running for ");
        if stuck { Ok(()) } else { Err(format!("{code} {message}")) }
    })
    .await;
    assert!(health.stuck_for().unwrap() > Duration::from_millis(600));
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
    let (health, server) = (internal::health(&webhook), serve(webhook).await);
    let (gated, hall) = (review("gate").to_string(), review("hall").to_string());
    let ((code, _), ()) = tokio::join!(post(&server, "/resource-validation", gated.as_bytes()), async {
        begun.notified().await;
        assert_eq!(post(&server, "/resource-validation", hall.as_bytes()).await.0, 200);
        let head = "GET /any HTTP/1.1\r\nuser-agent: kube-probe/1.36";
        assert_eq!(send(&mut connect(&server).await, head, b"").await.0, 200);
        assert_eq!(health.stuck_for(), None);
    });
    assert_eq!(code, 504);
    eventually("the callback to count as stuck", Duration::from_secs(3), async || {
        health.stuck_for().is_some()
    })
    .await;
    drop(release);
    eventually("the callback to end", Duration::from_secs(5), async || health.stuck_for().is_none()).await;
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
