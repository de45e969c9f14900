//! A webhook whose validators or mutators read objects that are not listed yet.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Client, client::Body};
use reknit_injection::{Context, Informer};
use reknit_testing::eventually;
use reknit_webhook::internal;
use serde_json::json;
use tokio::{sync::watch, time::timeout};

use super::{connect, lamp_webhook, send, short_limits};
use crate::local_server::serve;

/// A client of an API server that answers no list before the release, and no watch.
fn holding_client(released: watch::Receiver<bool>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let mut released = released.clone();
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
            if is_watch || released.wait_for(|released| *released).await.is_err() {
                std::future::pending::<()>().await;
            }
            let list = json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []});
            Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
        }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn a_webhook_fails_probes_as_long_as_a_first_list_is_in_progress() {
    let (release, released) = watch::channel(false);
    let cx = Context::new("webhook", holding_client(released));
    let _namespaces: Informer<Namespace> = cx.get();
    let server = serve(internal::await_informers(lamp_webhook(short_limits()), &cx)).await;
    cx.informers().start();
    let probe = async || {
        send(&mut connect(&server).await, "GET / HTTP/1.1\r\nuser-agent: kube-probe/1.36", b"").await.0
    };
    // The webhook waits for a list that fails for five seconds.
    assert!(timeout(Duration::from_secs(7), probe()).await.is_err(), "a probe was answered");
    release.send(true).unwrap();
    eventually("the probe to succeed", Duration::from_secs(30), async || probe().await == 200).await;
}
