//! Tests of single passes of waitdeployment, and a simulation.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Resource;
use reknit::{
    prelude::*,
    simulation::{Cluster, deployments_roll_out, simulation},
    testing::{ApiServer, ControllerExt, each_permission_is_needed, eventually, given},
};
use serde_json::{Value, json};

use crate::{
    permissions::failed_status_writes,
    support::{
        controller_of, replicas,
        wait::TIMEOUT,
        waitdeployment::{
            listener, probe_report,
            program::{Waitdeployment, controller},
            refusing_socket, waitdeployment,
        },
    },
};

/// The Waitdeployment `default/x`, of two replicas and with this probe.
fn waitdeployment_x(probe: Value) -> Waitdeployment {
    let mut object = waitdeployment("x", probe);
    object.metadata.namespace = Some("default".into());
    object.metadata.uid = Some("uid-of-x".into());
    object
}

#[tokio::test]
async fn an_invalid_probe_is_reported_and_nothing_is_created() {
    let listener = listener().await;
    let open = listener.local_addr().unwrap().to_string();
    let out_of_range = "is not above zero and at most a minute";
    let probes = [
        (json!({"address": open, "timeout": "0s"}), out_of_range),
        (json!({"address": open, "timeout": 0}), out_of_range),
        (json!({"address": open, "timeout": -1}), out_of_range),
        (json!({"address": open, "timeout": "-1s"}), out_of_range),
        (json!({"address": open, "timeout": "61s"}), out_of_range),
        (json!({"address": open, "timeout": 60_000_000_001_i64}), out_of_range),
        (json!({"address": open, "timeout": "soon"}), "invalid duration \"soon\""),
        (json!({"address": "127.0.0.1"}), "expected host:port"),
        (json!({"address": "127.0.0.1:0"}), "expected host:port"),
        (json!({"address": "::1:80"}), "expected host:port"),
        (json!({"address": ":80"}), "expected host:port"),
        (json!({"address": "http://x:80"}), "expected host:port"),
        (json!({"address": ""}), "expected host:port"),
    ];
    for (probe, cause) in probes {
        let effects = given(waitdeployment_x(probe.clone())).reconcile(controller, "default/x").await;
        assert!(effects.result.is_ok());
        assert_eq!(effects.writes(), ["patch waitdeployments/status default/x"], "{probe}");
        let after = effects.object::<Waitdeployment>("default/x").unwrap();
        let (status, reason, message) = probe_report(&after);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidProbe"), "{probe}");
        assert!(message.contains(probe["address"].as_str().unwrap()) && message.contains(cause), "{message}");
        let again = given(after).reconcile(controller, "default/x").await;
        assert_eq!(again.writes(), [""; 0], "{probe}");
    }
}

#[tokio::test]
async fn a_timeout_is_optional_and_a_text_or_nanoseconds_up_to_a_minute() {
    let (_socket, address) = refusing_socket("127.0.0.1:0");
    let refusing = address.to_string();
    for probe in [
        json!({"address": refusing}),
        json!({"address": refusing, "timeout": null}),
        json!({"address": refusing, "timeout": "1m"}),
        json!({"address": refusing, "timeout": 60_000_000_000_i64}),
        json!({"address": refusing, "timeout": "1ns"}),
        json!({"address": "[::1]:80", "timeout": 2_000_000_000}),
        json!({"address": "no-such-host.invalid:80"}),
    ] {
        let effects = given(waitdeployment_x(probe.clone())).reconcile(controller, "default/x").await;
        assert_eq!(effects.result.as_ref().unwrap(), &Outcome::done());
        let address = probe["address"].as_str().unwrap();
        let expected = ("False".into(), "Probing".into(), format!("connecting to {address}"));
        assert_eq!(probe_report(&effects.object("default/x").unwrap()), expected, "{probe}");
    }
}

/// The Deployment of `default/x` in its first generation, with this status. It has seven replicas instead of two.
async fn deployment_of(object: &Waitdeployment, status: Value) -> Deployment {
    let server = ApiServer::new();
    let objects = vec![server.insert(object)];
    let cx = Context::preloaded("waitdeployment", server.client(), objects);
    let deployments = Controller::of::<Waitdeployment>(&cx).owns::<Deployment>();
    let mut child = Deployment { spec: Some(object.spec.clone()), ..Deployment::default() };
    child.metadata.name = Some("x".into());
    child.spec.as_mut().unwrap().replicas = Some(7);
    let mut deployment = Deployment::clone(&*deployments.apply(object, child).await.unwrap());
    deployment.status = serde_json::from_value(status).unwrap();
    deployment
}

#[tokio::test]
async fn an_existing_deployment_follows_the_spec_without_a_probe() {
    let object = waitdeployment_x(json!({"address": "nonsense"}));
    let available = json!({
        "availableReplicas": 5,
        "conditions": [{"type": "Available", "status": "True"}],
    });
    let deployment = deployment_of(&object, available).await;
    let effects = given(object).and(deployment).reconcile(controller, "default/x").await;
    assert!(effects.result.is_ok());
    assert_eq!(effects.writes(), ["patch deployments default/x", "patch waitdeployments/status default/x"]);
    assert_eq!(replicas(&effects.object("default/x").unwrap()), Some(2));
    let status = effects.object::<Waitdeployment>("default/x").unwrap().status.unwrap();
    assert_eq!(status.available_replicas, Some(5));
    let conditions: Vec<_> =
        status.conditions.iter().flatten().map(|condition| (&*condition.type_, &*condition.status)).collect();
    assert_eq!(conditions, [("Available", "True"), ("ProbeSucceeded", "True")]);
}

#[tokio::test]
async fn the_generation_is_observed_once_that_of_the_deployment_is() {
    let mut object = waitdeployment_x(json!({"address": "nonsense"}));
    object.metadata.generation = Some(6);
    object.status = serde_json::from_value(json!({"observedGeneration": 5})).unwrap();
    // The pass restores the replicas, which increments the Deployment's generation to 2.
    for (deployment_observed, observed) in [(None, 5), (Some(1), 5), (Some(2), 6)] {
        let deployment = deployment_of(&object, json!({"observedGeneration": deployment_observed})).await;
        let effects = given(object.clone()).and(deployment).reconcile(controller, "default/x").await;
        assert!(effects.result.is_ok());
        assert_eq!(effects.object::<Deployment>("default/x").unwrap().metadata.generation, Some(2));
        let status = effects.object::<Waitdeployment>("default/x").unwrap().status.unwrap();
        assert_eq!(status.observed_generation, Some(observed), "the Deployment's is {deployment_observed:?}");
    }
}

#[tokio::test]
async fn a_pass_does_not_wait_for_the_probe_which_enqueues_the_key_when_it_ends() {
    let listener = listener().await;
    let object = waitdeployment_x(json!({"address": listener.local_addr().unwrap().to_string()}));
    let server = ApiServer::new();
    let key = Key::new("default", "x");
    let objects = vec![server.insert(&object)];
    let cx = Context::preloaded("waitdeployment", server.client(), objects);
    let controller = controller(&cx).unwrap();
    drop(cx);
    assert!(controller.once(&key).await.is_ok());
    assert_eq!(server.object::<Deployment>(Some("default"), "x"), None);
    eventually("the end of the probe", TIMEOUT, async || controller.take_queued().contains(&key)).await;
    assert!(controller.once(&key).await.is_ok());
    let child = server.object::<Deployment>(Some("default"), "x").unwrap();
    assert_eq!(controller_of(&child), Some(("Waitdeployment".into(), "x".into())));
    let (status, reason, _) = probe_report(&server.object(Some("default"), "x").unwrap());
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Connected"));
    server.take_writes();
    assert!(controller.once(&key).await.is_ok());
    assert_eq!(server.take_writes(), [], "a further pass writes nothing");
}

/// The pass that creates the Deployment follows the pass that starts the probe, so no single pass needs the permissions
/// of a creation.
#[tokio::test]
#[should_panic(
    expected = "without these permissions: get deployments, create deployments, update waitdeployments/finalizers: add"
)]
async fn a_single_pass_needs_each_declared_permission_but_those_to_create_a_deployment() {
    let object = waitdeployment_x(json!({"address": "nonsense"}));
    let deployment = deployment_of(&object, json!({})).await;
    each_permission_is_needed(|| {
        let given = || given(object.clone()).and(deployment.clone());
        failed_status_writes(controller, "waitdeployments", "default/x", given)
    })
    .await;
}

/// The Deployment of `default/x`, as if a probe had succeeded. There are no sockets in a simulation.
fn create_deployment(cluster: &mut Cluster) {
    let object: Waitdeployment = cluster.get("default/x").unwrap();
    let mut deployment = Deployment { spec: Some(object.spec.clone()), ..Deployment::default() };
    deployment.metadata.name = Some("x".into());
    deployment.metadata.namespace = Some("default".into());
    deployment.metadata.owner_references = Some(vec![object.controller_owner_ref(&()).unwrap()]);
    cluster.create(deployment);
}

#[test]
fn waitdeployments_keep_their_deployments_through_faults() {
    let secs = Duration::from_secs;
    let scale = |replicas| json!({"spec": {"replicas": replicas}});
    simulation([controller])
        .cluster(deployments_roll_out(secs(2)))
        .at(secs(1), |cluster| cluster.create(waitdeployment_x(json!({"address": "invalid"}))))
        .at(secs(10), create_deployment)
        .at(secs(20), move |cluster| cluster.merge::<Waitdeployment>("default/x", &scale(3)))
        .at(secs(40), move |cluster| cluster.merge::<Deployment>("default/x", &scale(1)))
        .finally("three pods are ready, after a probe", |cluster| {
            let object = cluster.get::<Waitdeployment>("default/x").unwrap();
            let ready = object.status.as_ref().and_then(|status| status.ready_replicas);
            let is_probed = probe_report(&object).0 == "True";
            let replicas = cluster.get("default/x").as_ref().and_then(replicas);
            (replicas, ready, is_probed) == (Some(3), Some(3), true)
        })
        .seeds(0..30)
        .each_write()
        .run();
}
