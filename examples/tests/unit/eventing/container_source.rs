//! Passes of the controller of ContainerSources.

use k8s_openapi::api::apps::v1::Deployment;
use reknit::{
    prelude::*,
    testing::{Effects, Given, Verb, each_permission_is_needed, given, nothing},
    webhook::TestRequest,
};
use serde_json::{Value, json};

use super::{assert_conditions, condition, stored};
use crate::{
    permissions::failed_status_writes,
    support::eventing::{
        container_source, object,
        program::{ContainerSource, SinkBinding, container_sources, webhook},
    },
};

const KEY: &str = "shop/clock";
const DEPLOYMENT: &str = "shop/clock-deployment";
const SINK_BINDING: &str = "shop/clock-sinkbinding";

fn clock() -> ContainerSource {
    stored(container_source("clock", json!({"uri": "http://sink/"})))
}

async fn reconcile(given: Given) -> Effects {
    given.reconcile(container_sources, KEY).await
}

/// The state after the first pass, with these statuses of the Deployment and the SinkBinding.
async fn with_children(available: Value, ready: Value) -> Given {
    let first = reconcile(given(clock())).await;
    let mut deployment: Deployment = first.object(DEPLOYMENT).unwrap();
    deployment.status = serde_json::from_value(json!({"conditions": [available]})).unwrap();
    let mut binding: SinkBinding = first.object(SINK_BINDING).unwrap();
    let status = json!({"conditions": [ready], "observedGeneration": 5, "sinkUri": "http://sink/"});
    binding.status = serde_json::from_value(status).unwrap();
    given(first.object::<ContainerSource>(KEY).unwrap()).and(deployment).and(binding)
}

fn reconciled() -> Event {
    Event::normal("ContainerSourceReconciled", r#"ContainerSource reconciled: "shop/clock""#)
}

#[tokio::test]
async fn a_source_gets_a_sink_binding_and_then_a_deployment() {
    let effects = reconcile(given(clock())).await;
    assert!(effects.result.is_ok());
    let expected = [
        "patch sinkbindings shop/clock-sinkbinding",
        "patch deployments shop/clock-deployment",
        "patch containersources/status shop/clock",
    ];
    assert_eq!(effects.writes(), expected);
    let created = [
        Event::normal("ContainerSourceSinkBindingCreated", r#"SinkBinding created "clock-sinkbinding""#),
        Event::normal("ContainerSourceDeploymentCreated", r#"Deployment created "clock-deployment""#),
        reconciled(),
    ];
    assert_eq!(effects.events(), created);

    let binding = effects.object::<SinkBinding>(SINK_BINDING).unwrap();
    let subject = json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "clock-deployment"});
    assert_eq!(json!(binding.spec), json!({"sink": {"uri": "http://sink/"}, "subject": subject}));
    let labels = json!({
        "sources.knative.dev/containerSource": "clock", "sources.knative.dev/source": "container-source-controller",
    });
    let deployment = json!(effects.object::<Deployment>(DEPLOYMENT).unwrap());
    assert_eq!(deployment["spec"]["selector"], json!({"matchLabels": labels}));
    assert_eq!(deployment["spec"]["template"]["metadata"]["labels"], labels);
    assert_eq!(deployment["metadata"]["labels"], labels);

    let status = effects.object::<ContainerSource>(KEY).unwrap().status.unwrap();
    let message = "The Deployment 'clock-deployment' is unavailable.";
    assert_conditions(
        &status.duck,
        &[
            ("SinkBindingReady", "Unknown", "", ""),
            ("ReceiveAdapterReady", "Unknown", "DeploymentUnavailable", message),
        ],
    );
}

#[tokio::test]
async fn a_source_is_ready_when_its_children_are() {
    let ready = with_children(
        json!({"type": "Available", "status": "True"}),
        json!({"type": "Ready", "status": "True"}),
    )
    .await;
    let effects = reconcile(ready).await;
    assert_eq!(effects.events(), [reconciled()]);
    assert_eq!(effects.writes(), ["patch containersources/status shop/clock"]);
    let status = effects.object::<ContainerSource>(KEY).unwrap().status.unwrap();
    assert_conditions(&status.duck, &[("Ready", "True", "", "")]);
    assert_eq!(status.sink_uri.unwrap().to_string(), "http://sink/");
    assert_eq!(status.duck.observed_generation, Some(1), "not that of the SinkBinding");
}

#[tokio::test]
async fn a_source_shows_why_a_child_is_not_ready() {
    let unready = with_children(
        condition("Available", "False", "MinimumReplicasUnavailable", "no pods"),
        condition("Ready", "False", "NoAddressable", "no sink"),
    )
    .await;
    let status = reconcile(unready).await.object::<ContainerSource>(KEY).unwrap().status.unwrap();
    assert_conditions(
        &status.duck,
        &[
            ("SinkBindingReady", "False", "NoAddressable", "no sink"),
            ("ReceiveAdapterReady", "False", "MinimumReplicasUnavailable", "no pods"),
        ],
    );
}

#[tokio::test]
async fn a_changed_template_is_applied_to_the_deployment() {
    let first = reconcile(given(clock())).await;
    let mut changed = first.object::<ContainerSource>(KEY).unwrap();
    let container = &mut changed.spec.template.spec.as_mut().unwrap().containers[0];
    container.image = Some("example.com/other".into());
    let (deployment, binding) =
        (first.object::<Deployment>(DEPLOYMENT).unwrap(), first.object::<SinkBinding>(SINK_BINDING).unwrap());
    let effects = reconcile(given(changed).and(deployment).and(binding)).await;
    let updated =
        Event::normal("ContainerSourceDeploymentUpdated", r#"Deployment updated "clock-deployment""#);
    assert_eq!(effects.events(), [updated, reconciled()]);
}

#[tokio::test]
async fn a_failed_request_is_an_error() {
    for (resource, name) in [
        ("sinkbindings", "SinkBinding shop/clock-sinkbinding"),
        ("deployments", "Deployment shop/clock-deployment"),
    ] {
        let effects = reconcile(given(clock()).failing(Verb::Patch, resource, 500)).await;
        let error = effects.result.unwrap_err();
        let expected = format!("cannot apply {name}: inducing failure for patch {resource}");
        assert!(error.in_full().starts_with(&expected), "{}", error.in_full());
        assert!(!error.is_permanent());
    }
}

#[tokio::test]
async fn a_deployment_of_another_owner_is_not_changed() {
    let foreign: Deployment = object(json!({"metadata": {"name": "clock-deployment", "namespace": "shop"}}));
    let effects = reconcile(given(clock()).and(foreign)).await;
    let error = effects.result.as_ref().unwrap_err().in_full();
    assert!(error.contains("is not controlled by ContainerSource shop/clock"), "{error}");
    assert!(!effects.writes().iter().any(|write| write.contains("deployments")));
}

#[tokio::test]
async fn the_webhook_names_containers_and_refuses_a_source_without_a_sink_or_a_container() {
    let webhook = nothing().webhook(webhook);
    let mut unnamed = clock();
    let spec = unnamed.spec.template.spec.as_mut().unwrap();
    spec.containers[0].name.clear();
    let admitted = webhook.admit(TestRequest::create(unnamed)).await.unwrap().object;
    assert_eq!(admitted["spec"]["template"]["spec"]["containers"][0]["name"], "clock-0");

    let mut empty = stored(container_source("clock", json!({})));
    empty.spec.template.spec.as_mut().unwrap().containers.clear();
    let refusal = webhook.admit(TestRequest::create(empty)).await.unwrap_err().to_string();
    assert!(refusal.contains("expected at least one, got none: spec.sink.ref, spec.sink.uri"), "{refusal}");
    assert!(refusal.contains("missing field(s): spec.template.spec.containers"), "{refusal}");
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(|| {
        failed_status_writes(container_sources, "containersources", KEY, || given(clock()))
    })
    .await;
}
