//! Single passes over a SimpleDeployment, through the constructor that the binary uses.
#![cfg(test)]

use k8s_openapi::api::core::v1::Pod;
use reknit::{
    prelude::*,
    reconciler::{ControllerConstructor, controller_reference},
    testing::{Effects, Given, Table, Verb, Want, each_permission_is_needed, given, table},
};
use reknit_samples::simple_deployment::controller;
use reknit_samples::{POD_OWNER, SimpleDeployment, SimpleDeploymentSpec, SimpleDeploymentStatus};
use serde_json::{Value, json};

const STATUS: &str = "patch simpledeployments/status default/x";
const CREATE: &str = "create pods default/x-";

/// The object `default/x` with this number of pods of this image.
fn simple_deployment(replicas: i32, image: &str) -> SimpleDeployment {
    let mut object = SimpleDeployment::new("x", SimpleDeploymentSpec { image: image.into(), replicas });
    object.metadata.namespace = Some("default".into());
    object.metadata.uid = Some("uid-x".into());
    object.metadata.generation = Some(1);
    object
}

/// A pod that `default/x` controls, with this status.
fn pod(name: &str, image: &str, status: Value) -> Value {
    json!({
        "metadata": {
            "namespace": "default", "name": name, "uid": format!("uid-{name}"), "labels": { POD_OWNER: "x" },
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{
                "apiVersion": "samples.knative.dev/v1alpha1", "kind": "SimpleDeployment", "name": "x",
                "uid": "uid-x", "controller": true,
            }],
        },
        "spec": { "nodeName": "n", "containers": [{ "name": "user-container", "image": image }] },
        "status": status,
    })
}

fn ready() -> Value {
    json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] })
}

fn with(given: Given, pod: Value) -> Given {
    given.and(serde_json::from_value::<Pod>(pod).expect("a pod"))
}

async fn run_pass(given: Given) -> Effects {
    given.reconcile(controller, "default/x").await
}

/// The ready replicas after the pass, and the Ready condition without its transition time.
fn ready_status(effects: &Effects) -> (i32, Value) {
    let status =
        effects.object::<SimpleDeployment>("default/x").and_then(|object| object.status).unwrap_or_default();
    let mut ready = json!(status.duck.condition("Ready"));
    if let Some(ready) = ready.as_object_mut() {
        ready.remove("lastTransitionTime");
    }
    (status.ready_replicas, ready)
}

fn not_ready(reason: &str, message: &str) -> Value {
    json!({ "type": "Ready", "status": "False", "reason": reason, "message": message })
}

#[tokio::test]
async fn missing_pods_are_created_with_label_and_owner() {
    let effects = run_pass(given(simple_deployment(3, "nginx"))).await;
    assert_eq!(effects.writes(), [CREATE, CREATE, CREATE, STATUS]);
    let body = &effects.write(0).body;
    assert_eq!(body["metadata"]["labels"], json!({ POD_OWNER: "x" }));
    let owner = &body["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&json!("uid-x"), &json!(true)));
    assert_eq!(body["spec"]["containers"], json!([{ "name": "user-container", "image": "nginx" }]));
    assert_eq!(ready_status(&effects), (0, not_ready("PodsNotReady", "3 pods are not ready yet")));
}

/// The number of replicas is up to the author of the object. A pass without end would hold a worker, and create pods for
/// an object that is deleted meanwhile.
#[tokio::test]
async fn a_pass_creates_at_most_five_hundred_pods() {
    let effects = run_pass(given(simple_deployment(i32::MAX, "nginx"))).await;
    assert_eq!(effects.writes().iter().filter(|write| **write == CREATE).count(), 500);
    assert_eq!(ready_status(&effects), (0, not_ready("PodsNotReady", "2147483647 pods are not ready yet")));
}

#[tokio::test]
async fn only_the_status_is_written_if_all_pods_are_ready() {
    let both_pods = with(
        with(given(simple_deployment(2, "nginx")), pod("a", "nginx", ready())),
        pod("b", "nginx", ready()),
    );
    let effects = run_pass(both_pods).await;
    assert_eq!(effects.writes(), [STATUS]);
    assert_eq!(ready_status(&effects), (2, json!({ "type": "Ready", "status": "True" })));
}

#[tokio::test]
async fn a_surplus_pod_that_is_not_ready_is_deleted_by_uid() {
    let both_pods = with(
        with(given(simple_deployment(1, "nginx")), pod("a", "nginx", ready())),
        pod("b", "nginx", json!({})),
    );
    let effects = run_pass(both_pods).await;
    assert_eq!(effects.writes(), ["delete pods default/b", STATUS]);
    assert_eq!(effects.write(0).body["preconditions"], json!({ "uid": "uid-b" }));
    assert_eq!(ready_status(&effects).0, 1);
}

#[tokio::test]
async fn pods_of_another_image_are_deleted_before_new_ones_are_created() {
    let effects = run_pass(with(given(simple_deployment(1, "nginx:2")), pod("a", "nginx:1", ready()))).await;
    assert_eq!(effects.writes(), ["delete pods default/a", CREATE, STATUS]);

    let old_pod = with(given(simple_deployment(1, "nginx:2")), pod("a", "nginx:1", ready()));
    let effects = run_pass(old_pod.failing(Verb::Delete, "pods", 403)).await;
    assert_eq!(
        effects.writes(),
        ["delete pods default/a", STATUS],
        "a pod was created while the old pod exists"
    );
    assert_eq!(effects.events()[0].reason, "FailedDelete");
}

#[tokio::test]
async fn terminated_and_terminating_pods_and_pods_of_others_are_ignored() {
    let mut terminating = pod("terminating", "nginx", ready());
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut controlled_by_another = pod("controlled-by-another", "nginx", ready());
    controlled_by_another["metadata"]["ownerReferences"][0]["uid"] = json!("uid-other");
    let mut orphan_of_another = pod("orphan-of-another", "nginx", ready());
    orphan_of_another["metadata"]["labels"] = json!({ POD_OWNER: "y" });
    orphan_of_another["metadata"]["ownerReferences"] = json!([]);
    let failed = pod("failed", "nginx", json!({ "phase": "Failed", "reason": "Evicted" }));
    let ignored_pods = [terminating, controlled_by_another, orphan_of_another, failed]
        .into_iter()
        .fold(given(simple_deployment(1, "nginx")), with);
    let effects = run_pass(ignored_pods).await;
    assert_eq!(effects.writes(), [CREATE, STATUS]);
}

/// The object, and one pod that has the object's label and no owner reference.
fn with_orphan() -> Given {
    let mut orphan = pod("orphan", "nginx", ready());
    orphan["metadata"]["ownerReferences"] = json!([]);
    with(given(simple_deployment(1, "nginx")), orphan)
}

#[tokio::test]
async fn an_orphan_with_the_label_is_adopted_with_preconditions() {
    let effects = run_pass(with_orphan()).await;
    assert_eq!(effects.writes(), ["patch pods default/orphan", STATUS]);
    let metadata = &effects.write(0).body["metadata"];
    assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("uid-orphan"), &json!("1")));
    assert_eq!(metadata["ownerReferences"][0]["uid"], "uid-x");
    assert_eq!(ready_status(&effects).0, 1);
}

#[tokio::test]
async fn a_conflict_on_adoption_has_no_event() {
    let effects = run_pass(with_orphan().failing(Verb::Patch, "pods", 409)).await;
    assert!(effects.result.as_ref().is_err_and(Error::is_conflict));
    assert_eq!(effects.events(), []);
    assert_eq!(effects.writes(), ["patch pods default/orphan", STATUS]);
}

#[tokio::test]
async fn a_deleted_owner_adopts_and_creates_nothing() {
    let effects = run_pass(with_orphan().failing(Verb::Get, "simpledeployments", 404)).await;
    assert!(effects.result.as_ref().is_err_and(Error::is_permanent));
    assert_eq!(effects.writes(), [STATUS]);
}

#[tokio::test]
async fn a_pod_whose_label_names_another_owner_is_released_and_replaced() {
    let mut relabelled = pod("relabelled", "nginx", ready());
    relabelled["metadata"]["labels"] = json!({ POD_OWNER: "y" });
    let effects = run_pass(with(given(simple_deployment(1, "nginx")), relabelled)).await;
    assert_eq!(effects.writes(), ["patch pods default/relabelled", CREATE, STATUS]);
    assert_eq!(effects.write(0).body["metadata"]["ownerReferences"], json!([]));
}

#[tokio::test]
async fn after_a_refused_pod_no_more_are_requested_and_status_and_event_report_it() {
    let effects = run_pass(given(simple_deployment(9, "nginx")).failing(Verb::Create, "pods", 403)).await;
    assert!(effects.result.is_err());
    assert_eq!(effects.writes(), [CREATE, STATUS]);
    let message = "error creating: 9 of 9 pods are missing: inducing failure for create pods (403 Forbidden)";
    assert_eq!(ready_status(&effects), (0, not_ready("FailedCreate", message)));
    assert_eq!(effects.events(), [Event::warning("FailedCreate", message)]);
}

/// The object with this status.
fn with_status(
    replicas: i32,
    ready_replicas: i32,
    mark: impl FnOnce(&mut SimpleDeploymentStatus),
) -> SimpleDeployment {
    let mut status = SimpleDeploymentStatus { ready_replicas, ..SimpleDeploymentStatus::default() };
    mark(&mut status);
    status.duck.observed_generation = Some(1);
    SimpleDeployment { status: Some(status), ..simple_deployment(replicas, "nginx") }
}

/// Passes that send each type of request.
fn cases_of_each_request() -> Table<ControllerConstructor> {
    let owner = controller_reference(&simple_deployment(1, "nginx"));
    let all_ready = with_status(1, 1, |status| status.mark_pods_ready());
    let none_wanted = with_status(0, 0, |status| status.mark_pods_ready());
    let refused =
        "error creating: 1 of 1 pods are missing: inducing failure for create pods (500 InternalError)";
    let new_pod = json!({
        "metadata": {
            "namespace": "default", "generateName": "x-", "labels": { POD_OWNER: "x" }, "ownerReferences": [owner],
            "annotations": { "samples.knative.dev/image": "nginx" },
        },
        "spec": { "containers": [{ "name": "user-container", "image": "nginx" }] },
    });
    let new_pod: Pod = serde_json::from_value(new_pod).expect("a pod");
    table(controller as ControllerConstructor)
        .row(
            "an orphan is adopted",
            "default/x",
            with_orphan(),
            Want::done()
                .patch::<Pod>("default/orphan", json!({ "metadata": { "ownerReferences": [owner] } }))
                .status(&all_ready),
        )
        .row(
            "a surplus pod is deleted, and the status is written again after a conflict",
            "default/x",
            with(given(simple_deployment(0, "nginx")), pod("a", "nginx", ready())).failing_times(
                Verb::Patch,
                "simpledeployments/status",
                409,
                1,
            ),
            Want::done().delete::<Pod>("default/a").status(&none_wanted).status(&none_wanted),
        )
        .row(
            "a refused pod is reported",
            "default/x",
            given(simple_deployment(1, "nginx")).failing(Verb::Create, "pods", 500),
            Want::error(refused)
                .create(&new_pod)
                .status(&with_status(1, 0, |status| status.mark_pods_refused("FailedCreate", refused)))
                .event(Event::warning("FailedCreate", refused)),
        )
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(cases_of_each_request).await;
}
