//! Pods and SimpleDeployments that the API server refuses.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use reknit_samples::{SimpleDeployment, SimpleDeploymentSpec};
use serde_json::json;

use super::{IMAGE, count_pod_requests};
use crate::support::{objects::Objects, process, proxy::Exchange, server::Server};

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_a_quota_refuses_are_reported_in_status_and_event() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("quota").await;
    let proxy = server.proxy().await;
    apply_pod_quota(&objects, 20).await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let controller =
        process::controller(&kubeconfig).without_leader_election().in_namespace(&objects.namespace).spawn();
    controller.wait_until_ready().await;

    let began = Instant::now();
    let object = objects.create_deployment("x", IMAGE, 50).await;
    objects.wait_for_alive_pods(&object, 20).await;
    let event = objects.wait_for_event("x", "FailedCreate").await;
    println!("event: {:?}", event.note);
    assert!(event.note.is_some_and(|note| note.contains("exceeded quota")));
    let message = objects.wait_for_refused_pods("x", "30 of 50 pods are missing").await;
    println!("status: {message}");
    assert!(message.contains("exceeded quota"), "{message}");
    assert_eq!(objects.controlled_pods(&object).await.len(), 20);

    // After five seconds, retries are rare, and each sends a single request.
    tokio::time::sleep(Duration::from_secs(5).saturating_sub(began.elapsed())).await;
    let (creations, elapsed) = (count_pod_requests(&proxy, "create"), began.elapsed());
    let status_writes = proxy.count_requests(|request| request.is("patch", "simpledeployments/status"));
    println!(
        "{creations} creations and {status_writes} status writes sent in {elapsed:?} for 20 allowed pods"
    );
    assert!(creations < 20 + 30 + 15, "a hot loop: {creations} creations in {elapsed:?}");
    assert!(
        status_writes <= 4,
        "the status changes with each refusal: {status_writes} writes in {elapsed:?}"
    );

    apply_pod_quota(&objects, 50).await;
    objects.wait_for_alive_pods(&object, 50).await;
    objects.wait_for_ready_and_unready_pods("x", 0, 50).await;
    let is_created = |exchange: &&Exchange| exchange.request.is("create", "pods") && exchange.status == 201;
    assert_eq!(proxy.exchanges().iter().filter(is_created).count(), 50, "created pods");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_image_is_reported_in_status_and_event_until_it_is_replaced() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("noimage").await;
    let controller = process::controller(server.kubeconfig())
        .without_leader_election()
        .in_namespace(&objects.namespace)
        .spawn();
    let object = objects.create_deployment("x", " blank", 2).await;
    let message = objects.wait_for_refused_pods("x", "2 of 2 pods are missing").await;
    println!("status: {message}");
    assert!(message.contains("image"), "{message}");
    objects.wait_for_event("x", "FailedCreate").await;
    objects.patch_deployment_spec("x", json!({ "image": IMAGE })).await;
    objects.wait_for_alive_pods(&object, 2).await;
    objects.wait_for_ready_and_unready_pods("x", 0, 2).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_refuses_invalid_specs_and_defaults_replicas_to_1() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("schema").await;
    let create = async |name: &str, image: &str, replicas| {
        let object = SimpleDeployment::new(name, SimpleDeploymentSpec { image: image.into(), replicas });
        objects.deployments().create(&PostParams::default(), &object).await.map_err(|error| error.to_string())
    };
    for (name, image, replicas, expected) in [
        ("x", IMAGE, -1, "should be greater than or equal to 0"),
        ("x", "", 1, "should be at least 1 chars long"),
        (&"x".repeat(64), IMAGE, 1, "63 characters at most"),
    ] {
        let refused = create(name, image, replicas).await.expect_err("the object is refused");
        assert!(refused.contains(expected), "{refused}");
    }
    let patch = Patch::Apply(json!({
        "apiVersion": "samples.knative.dev/v1alpha1", "kind": "SimpleDeployment",
        "metadata": { "name": "x" }, "spec": { "image": IMAGE },
    }));
    let created = objects.deployments().patch("x", &PatchParams::apply("test"), &patch).await;
    assert_eq!(created.expect("the object is created").spec.replicas, 1);
}

/// Applies a quota of `max` pods. No quota controller runs here, so this also sets the initial usage of 0. Admission
/// then increases the usage.
async fn apply_pod_quota(objects: &Objects, max: u32) {
    let api: Api<ResourceQuota> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let hard = json!({ "pods": max.to_string() });
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "pods" }, "spec": { "hard": hard },
    });
    api.patch("pods", &PatchParams::apply("test").force(), &Patch::Apply(quota)).await.expect("the quota");
    let used = api.get("pods").await.expect("the quota").status.and_then(|status| status.used);
    let used = used.map_or(json!({ "pods": "0" }), |used| json!(used));
    let status = Patch::Merge(json!({ "status": { "hard": hard, "used": used } }));
    api.patch_status("pods", &PatchParams::default(), &status).await.expect("the status of the quota");
}
