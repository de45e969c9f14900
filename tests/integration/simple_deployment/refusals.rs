use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use samples_apis::{SimpleDeployment, SimpleDeploymentSpec};
use serde_json::json;

use super::{IMAGE, sent};
use crate::support::{objects::Objects, process, server::Server};

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_admits_some_pods_and_status_and_event_report_the_refused() {
    let server = Server::shared().await;
    let objects = server.objects("quota").await;
    let proxy = server.proxy().await;
    allow_pods(&objects, 20).await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let controller = process::controller(&kubeconfig).alone().within(&objects.namespace).spawn();
    controller.ready().await;

    let began = Instant::now();
    let object = objects.deploy("x", IMAGE, 50).await;
    objects.all_alive(&object, 20).await;
    let event = objects.event("x", "FailedCreate").await;
    println!("event: {:?}", event.note);
    assert!(event.note.is_some_and(|note| note.contains("exceeded quota")));
    let message = objects.pods_refused("x", "30 of 50 pods are missing").await;
    println!("status: {message}");
    assert!(message.contains("exceeded quota"), "{message}");
    assert_eq!(objects.pods_of(&object).await.len(), 20);

    // Retries are a single request each, and become rare.
    tokio::time::sleep(Duration::from_secs(5).saturating_sub(began.elapsed())).await;
    let (tries, waited) = (sent(&proxy, "create"), began.elapsed());
    let statuses = proxy.count(|request| request.is("patch", "simpledeployments/status"));
    println!(
        "{tries} creations and {statuses} status writes sent in {waited:?} for 20 pods that are allowed"
    );
    assert!(tries < 20 + 30 + 15, "a hot loop: {tries} creations in {waited:?}");
    assert!(statuses <= 4, "a status that changes with each refusal: {statuses} writes in {waited:?}");

    allow_pods(&objects, 50).await;
    objects.all_alive(&object, 50).await;
    objects.pods_not_ready("x", 0, 50).await;
    let made = proxy.answered().iter().filter(|a| a.request.is("create", "pods") && a.status == 201).count();
    assert_eq!(made, 50, "pods that were created");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_image_is_reported_in_status_and_event_until_it_is_replaced() {
    let server = Server::shared().await;
    let objects = server.objects("noimage").await;
    let controller = process::controller(server.kubeconfig()).alone().within(&objects.namespace).spawn();
    let object = objects.deploy("x", " blank", 2).await;
    let message = objects.pods_refused("x", "2 of 2 pods are missing").await;
    println!("status: {message}");
    assert!(message.contains("image"), "{message}");
    objects.event("x", "FailedCreate").await;
    objects.want("x", json!({ "image": IMAGE })).await;
    objects.all_alive(&object, 2).await;
    objects.pods_not_ready("x", 0, 2).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_refuses_what_the_schema_does_not_allow() {
    let server = Server::shared().await;
    let objects = server.objects("schema").await;
    let create = async |name: &str, image: &str, replicas| {
        let object = SimpleDeployment::new(name, SimpleDeploymentSpec { image: image.into(), replicas });
        objects.deployments().create(&PostParams::default(), &object).await.map_err(|error| error.to_string())
    };
    for (name, image, replicas, expected) in [
        ("x", IMAGE, -1, "should be greater than or equal to 0"),
        ("x", "", 1, "should be at least 1 chars long"),
        (&"x".repeat(64), IMAGE, 1, "63 characters at most"),
    ] {
        let refused = create(name, image, replicas).await.expect_err("it is refused");
        assert!(refused.contains(expected), "{refused}");
    }
    let defaulted = json!({ "metadata": { "name": "x" }, "spec": { "image": IMAGE } });
    let patch = Patch::Apply(json!({
        "apiVersion": "samples.knative.dev/v1alpha1", "kind": "SimpleDeployment",
        "metadata": defaulted["metadata"], "spec": defaulted["spec"],
    }));
    let made =
        objects.deployments().patch("x", &PatchParams::apply("test"), &patch).await.expect("it is made");
    assert_eq!(made.spec.replicas, 1);
}

/// Sets the quota's usage, as the quota controller would. It does not run here, and admission counts from this number.
async fn allow_pods(objects: &Objects, most: u32) {
    let api: Api<ResourceQuota> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let hard = json!({ "pods": most.to_string() });
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "q" }, "spec": { "hard": hard },
    });
    api.patch("q", &PatchParams::apply("test").force(), &Patch::Apply(quota)).await.expect("the quota");
    let used = api.get("q").await.expect("the quota").status.and_then(|status| status.used);
    let used = used.map_or(json!({ "pods": "0" }), |used| json!(used));
    let status = Patch::Merge(json!({ "status": { "hard": hard, "used": used } }));
    api.patch_status("q", &PatchParams::default(), &status).await.expect("its status");
}
