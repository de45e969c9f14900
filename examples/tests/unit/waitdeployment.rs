//! Single passes of waitdeployment.

use k8s_openapi::api::apps::v1::Deployment;
use reknit::testing::ControllerExt;
use reknit::{
    prelude::*,
    testing::{ApiServer, eventually, given},
};
use serde_json::{Value, json};

use crate::support::{
    controller_of, replicas,
    wait::SOON,
    waitdeployment::{
        listener, nobody,
        program::{Waitdeployment, controller},
        said, waiting,
    },
};

/// `default/x`
fn given_waiting(probe: Value) -> Waitdeployment {
    let mut object = waiting("x", probe);
    object.metadata.namespace = Some("default".into());
    object.metadata.uid = Some("uid-of-x".into());
    object
}

#[tokio::test]
async fn an_invalid_probe_is_said_to_be_one_and_nothing_is_created() {
    let open = listener().await;
    let open = open.local_addr().unwrap().to_string();
    let long = "is not more than nothing and at most a minute";
    let probes = [
        (json!({"address": open, "timeout": "0s"}), long),
        (json!({"address": open, "timeout": 0}), long),
        (json!({"address": open, "timeout": -1}), long),
        (json!({"address": open, "timeout": "-1s"}), long),
        (json!({"address": open, "timeout": "61s"}), long),
        (json!({"address": open, "timeout": 60_000_000_001_i64}), long),
        (json!({"address": open, "timeout": "soon"}), "invalid duration \"soon\""),
        (json!({"address": "127.0.0.1"}), "want host:port"),
        (json!({"address": "127.0.0.1:0"}), "want host:port"),
        (json!({"address": "::1:80"}), "want host:port"),
        (json!({"address": ":80"}), "want host:port"),
        (json!({"address": "http://x:80"}), "want host:port"),
        (json!({"address": ""}), "want host:port"),
    ];
    for (probe, cause) in probes {
        let passed = given(given_waiting(probe.clone())).pass(controller, "default/x").await;
        assert!(passed.result.is_ok());
        assert_eq!(passed.writes(), ["patch waitdeployments/status default/x"], "{probe}");
        let after = passed.object::<Waitdeployment>("default/x").unwrap();
        let (status, reason, message) = said(&after);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidProbe"), "{probe}");
        assert!(message.contains(probe["address"].as_str().unwrap()) && message.contains(cause), "{message}");
        let again = given(after).pass(controller, "default/x").await;
        assert_eq!(again.writes(), [""; 0], "{probe}");
    }
}

#[tokio::test]
async fn a_timeout_may_be_left_out_written_out_or_counted_and_be_a_whole_minute() {
    let (_nobody, address) = nobody("127.0.0.1:0");
    let nobody = address.to_string();
    for probe in [
        json!({"address": nobody}),
        json!({"address": nobody, "timeout": null}),
        json!({"address": nobody, "timeout": "1m"}),
        json!({"address": nobody, "timeout": 60_000_000_000_i64}),
        json!({"address": nobody, "timeout": "1ns"}),
        json!({"address": "[::1]:80", "timeout": 2_000_000_000}),
        json!({"address": "no-such-host.invalid:80"}),
    ] {
        let passed = given(given_waiting(probe.clone())).pass(controller, "default/x").await;
        assert_eq!(passed.result.as_ref().unwrap(), &Outcome::done());
        let address = probe["address"].as_str().unwrap();
        let expected = ("False".into(), "Probing".into(), format!("connecting to {address}"));
        assert_eq!(said(&passed.object("default/x").unwrap()), expected, "{probe}");
    }
}

/// The Deployment of `default/x`, of seven replicas and in the first of its generations.
async fn made_of(object: &Waitdeployment, status: Value) -> Deployment {
    let server = ApiServer::new();
    let held = vec![server.hold(object)];
    let cx = Context::preloaded("waitdeployment", server.client(), held);
    let deployments = Controller::of::<Waitdeployment>(&cx).owns::<Deployment>();
    let mut child = Deployment { spec: Some(object.spec.clone()), ..Deployment::default() };
    child.metadata.name = Some("x".into());
    child.spec.as_mut().unwrap().replicas = Some(7);
    let mut made = Deployment::clone(&*deployments.apply(object, child).await.unwrap());
    made.status = serde_json::from_value(status).unwrap();
    made
}

#[tokio::test]
async fn a_deployment_that_is_there_follows_the_spec_without_a_probe() {
    let object = given_waiting(json!({"address": "nonsense"}));
    let available = json!({
        "availableReplicas": 5,
        "conditions": [{"type": "Available", "status": "True"}],
    });
    let made = made_of(&object, available).await;
    let passed = given(object).and(made).pass(controller, "default/x").await;
    assert!(passed.result.is_ok());
    assert_eq!(passed.writes(), ["patch deployments default/x", "patch waitdeployments/status default/x"]);
    assert_eq!(replicas(&passed.object("default/x").unwrap()), Some(2));
    let status = passed.object::<Waitdeployment>("default/x").unwrap().status.unwrap();
    assert_eq!(status.available_replicas, Some(5));
    let conditions: Vec<_> =
        status.conditions.iter().flatten().map(|one| (&*one.type_, &*one.status)).collect();
    assert_eq!(conditions, [("Available", "True"), ("ProbeSucceeded", "True")]);
}

#[tokio::test]
async fn a_generation_is_observed_once_that_of_the_deployment_is() {
    let mut object = given_waiting(json!({"address": "nonsense"}));
    object.metadata.generation = Some(6);
    object.status = serde_json::from_value(json!({"observedGeneration": 5})).unwrap();
    // The pass puts the replicas back, which makes the Deployment's second generation.
    for (seen, observed) in [(None, 5), (Some(1), 5), (Some(2), 6)] {
        let made = made_of(&object, json!({"observedGeneration": seen})).await;
        let passed = given(object.clone()).and(made).pass(controller, "default/x").await;
        assert!(passed.result.is_ok());
        assert_eq!(passed.object::<Deployment>("default/x").unwrap().metadata.generation, Some(2));
        let status = passed.object::<Waitdeployment>("default/x").unwrap().status.unwrap();
        assert_eq!(status.observed_generation, Some(observed), "where the Deployment's is {seen:?}");
    }
}

#[tokio::test]
async fn a_pass_ends_before_the_probe_does_which_then_wakes_its_key() {
    let open = listener().await;
    let object = given_waiting(json!({"address": open.local_addr().unwrap().to_string()}));
    let server = ApiServer::new();
    let key = Key::new("default", "x");
    let held = vec![server.hold(&object)];
    let cx = Context::preloaded("waitdeployment", server.client(), held);
    let made = controller(&cx);
    drop(cx);
    let made = made.unwrap();
    assert!(made.once(&key).await.is_ok());
    assert_eq!(server.object::<Deployment>(Some("default"), "x"), None);
    eventually("the end of the probe", SOON, async || made.queued().contains(&key)).await;
    assert!(made.once(&key).await.is_ok());
    let child = server.object::<Deployment>(Some("default"), "x").unwrap();
    assert_eq!(controller_of(&child), Some(("Waitdeployment".into(), "x".into())));
    let (status, reason, _) = said(&server.object(Some("default"), "x").unwrap());
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Connected"));
    server.writes();
    assert!(made.once(&key).await.is_ok());
    assert_eq!(server.writes(), [], "and that is all");
}
