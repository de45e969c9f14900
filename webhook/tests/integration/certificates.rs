//! The certificate of a webhook that a real API server calls: created, repaired, extended and rotated.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use reknit_testing::eventually;
use reknit_webhook::Webhook;
use rustls::{
    pki_types::{CertificateDer, pem::PemObject},
    version::TLS13,
};
use serde_json::json;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, interval},
};

use crate::{
    lamp::Lamp,
    local_server::{issue_certificate, tls_client},
    process::{Process, TIMEOUT, dry_create},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_new_host_of_a_configuration_is_added_to_the_certificate() {
    let process = Process::start("host", |webhook| webhook.defaulting::<Lamp>()).await;
    process.configure_defaulting().await;
    process.wait_until_settled().await;
    assert!(process.reconcile_count() > 0.0);
    let name = format!("defaulting.webhook.{}", process.domain);
    let mut with_new_host = process.mutating().get(&name).await.unwrap();
    let url = format!("https://localhost:{}/defaulting", process.address.port());
    with_new_host.webhooks.as_mut().unwrap()[0].client_config.url = Some(url);
    process.mutating().replace(&name, &PostParams::default(), &with_new_host).await.unwrap();
    eventually("a certificate for the new host", TIMEOUT, async || {
        let tcp = TcpStream::connect(process.address).await?;
        let connector = tls_client(&process.ca_bundle().await, &TLS13);
        connector.connect("localhost".try_into().unwrap(), tcp).await.map(drop)
    })
    .await;
    process.wait_for_watts(Some(40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_secret_is_filled_and_a_deleted_one_is_created_again_with_its_labels() {
    let process = Process::start("secret", |webhook| webhook.defaulting::<Lamp>()).await;
    process.configure_defaulting().await;
    let secrets: Api<Secret> = Api::namespaced(process.client.clone(), &process.namespace);
    let without_data = Patch::Merge(json!({"data": null, "metadata": {"labels": {"app": "lamps"}}}));
    secrets.patch("webhook-certs", &PatchParams::default(), &without_data).await.unwrap();
    eventually("the Secret to be filled", TIMEOUT, async || {
        secrets.get("webhook-certs").await.unwrap().data.is_some_and(|data| data.len() == 5)
    })
    .await;
    secrets.delete("webhook-certs", &Default::default()).await.unwrap();
    let created =
        eventually("the Secret to be created again", TIMEOUT, async || secrets.get("webhook-certs").await)
            .await;
    assert_eq!(created.metadata.labels.unwrap_or_default()["app"], "lamps");
    process.wait_for_watts(Some(40)).await;
    // The Secret had no certificate when it was empty and when it was gone, after one had been served.
    assert_eq!(process.counter("certwatcher_read_certificate_errors_total"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_secret_is_repaired() {
    let process = Process::start("damage", |webhook| webhook.defaulting::<Lamp>()).await;
    process.configure_defaulting().await;
    let secrets: Api<Secret> = Api::namespaced(process.client.clone(), &process.namespace);
    let (ca, certificate, key) = issue_certificate();
    let damages = [
        ("server-cert.pem", "nonsense".to_owned()),
        ("server-cert.pem", certificate),
        ("server-key.pem", key.clone()),
        ("ca-cert.pem", String::new()),
        ("ca-cert.pem", ca.clone()),
        ("next-ca-key.pem", "nonsense".to_owned()),
        ("next-ca-key.pem", key.clone()),
        ("next-ca-cert.pem", ca.clone()),
    ];
    for (name, text) in damages {
        let damage = Patch::Merge(json!({"data": {name: ByteString(text.clone().into_bytes())}}));
        secrets.patch("webhook-certs", &PatchParams::default(), &damage).await.unwrap();
        let repaired = eventually(format!("{name} with {text:?} to be repaired"), TIMEOUT, async || {
            let data = process.secret().await.data.unwrap();
            (data[name].0 != text.as_bytes()).then_some(data).ok_or("unchanged")
        })
        .await;
        let certificate = CertificateDer::from_pem_slice(&repaired["server-cert.pem"].0).unwrap();
        eventually(
            format!("the new certificate to be served and trusted after {name}"),
            TIMEOUT,
            async || match process.handshake().await {
                Ok(served) if served == certificate => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await;
    }
    let lamp = dry_create(&process.client, &process.namespace).await.unwrap();
    assert_eq!(lamp.spec.watts, Some(40));
}

/// The maximum number of requests at once. More would only queue up on a busy machine.
const MAX_REQUESTS: usize = 10;

/// Configures certificates that are renewed after five seconds. They last ten minutes longer, so that a busy machine has time for
/// each rotation.
fn rotating(webhook: Webhook) -> Webhook {
    webhook.defaulting::<Lamp>().certificates(Duration::from_secs(605), Duration::from_secs(600))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_certificates_are_rotated_every_five_seconds() {
    let process = Process::start("rotation", rotating).await;
    process.configure_defaulting().await;
    let (failed, requested) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut requests = JoinSet::new();
    let (mut ticks, start) = (interval(Duration::from_millis(20)), Instant::now());
    let (mut certificates, mut handshakes) = (Vec::<ByteString>::new(), 0);
    for tick in 0.. {
        if certificates.len() >= 4 && requested.load(Ordering::Relaxed) >= 200 {
            break;
        }
        assert!(start.elapsed() < TIMEOUT * 6, "{} certificates", certificates.len());
        ticks.tick().await;
        while requests.len() >= MAX_REQUESTS {
            requests.join_next().await.unwrap().unwrap();
        }
        let (client, namespace) = (process.client.clone(), process.namespace.clone());
        let (failed, requested) = (failed.clone(), requested.clone());
        requests.spawn(async move {
            let answer = dry_create(&client, &namespace).await;
            requested.fetch_add(1, Ordering::Relaxed);
            if !answer.as_ref().is_ok_and(|lamp| lamp.spec.watts == Some(40)) {
                println!("{answer:?}");
                failed.fetch_add(1, Ordering::Relaxed);
            }
        });
        // The API server keeps its connections, so a client with the same bundle opens new connections.
        if tick % 10 == 0 {
            let certificate = process.secret().await.data.unwrap()["server-cert.pem"].clone();
            if certificates.last() != Some(&certificate) {
                certificates.push(certificate);
            }
            process.handshake().await.unwrap();
            handshakes += 1;
        }
    }
    requests.join_all().await;
    let (failed, requested) = (failed.load(Ordering::Relaxed), requested.load(Ordering::Relaxed));
    println!(
        "{} certificates, {requested} requests, {handshakes} handshakes, {failed} failed",
        certificates.len()
    );
    assert_eq!(failed, 0);
}
