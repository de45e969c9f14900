//! Passes of the controller of SinkBindings, and its webhook.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::api::DynamicObject;
use reknit::{
    apis::{DuckStatus, service_host_name},
    testing::{Effects, Given, each_permission_is_needed, given, nothing},
    webhook::TestRequest,
};
use serde_json::{Value, json};

use super::{assert_conditions, stored};
use crate::{
    permissions::failed_status_writes,
    support::eventing::{
        object,
        program::{SinkBinding, sink_bindings, webhook},
        sink_binding,
    },
};

const KEY: &str = "shop/orders";

fn orders(sink: Value) -> SinkBinding {
    let subject = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let mut binding = stored(sink_binding("orders", json!({"sink": sink, "subject": subject})));
    binding.metadata.finalizers = Some(vec!["sinkbindings.sources.knative.dev".into()]);
    binding
}

fn service_ref() -> Value {
    json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "sink"}})
}

fn sink_service() -> Service {
    object(json!({"metadata": {"name": "sink", "namespace": "shop"}}))
}

/// The Deployment `shop/web`, with an init container and a container that has a variable of its own.
fn web() -> Deployment {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "initContainers": [{"name": "setup", "image": "i"}],
        "containers": [{"name": "main", "image": "i", "env": [{"name": "OWN", "value": "1"}]}],
    }});
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
    object(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}))
}

async fn reconcile(given: Given) -> Effects {
    given.reconcile(sink_bindings, KEY).await
}

/// The variables of the init container and of the container.
fn variables(deployment: &Value) -> [Value; 2] {
    let spec = &deployment["spec"]["template"]["spec"];
    [spec["initContainers"][0]["env"].clone(), spec["containers"][0]["env"].clone()]
}

fn status_of(effects: &Effects) -> DuckStatus {
    effects.object::<SinkBinding>(KEY).unwrap().status.unwrap().duck
}

#[tokio::test]
async fn the_address_of_the_sink_is_injected_into_all_containers() {
    let effects = reconcile(given(orders(service_ref())).and(sink_service()).and(web())).await;
    assert!(effects.result.is_ok());
    let sink = json!({"name": "K_SINK", "value": format!("http://{}", service_host_name("sink", "shop"))});
    let overrides = json!({"name": "K_CE_OVERRIDES"});
    let own = json!({"name": "OWN", "value": "1"});
    let web = json!(effects.object::<Deployment>("shop/web").unwrap());
    assert_eq!(variables(&web), [json!([sink, overrides]), json!([own, sink, overrides])]);
    assert_conditions(&status_of(&effects), &[("Ready", "True", "", ""), ("SinkProvided", "True", "", "")]);

    let again = given(effects.object::<SinkBinding>(KEY).unwrap())
        .and(sink_service())
        .and(effects.object::<Deployment>("shop/web").unwrap());
    assert_eq!(reconcile(again).await.writes(), [""; 0]);
}

#[tokio::test]
async fn certificates_and_changes_to_events_are_injected_too() {
    let mut binding = orders(json!({"uri": "https://sink/", "CACerts": "pem"}));
    binding.spec.source.ce_overrides =
        serde_json::from_value(json!({"extensions": {"tenant": "a"}})).unwrap();
    let effects = reconcile(given(binding).and(web())).await;
    let web = json!(effects.object::<Deployment>("shop/web").unwrap());
    let expected = json!([
        {"name": "K_SINK", "value": "https://sink/"},
        {"name": "K_CA_CERTS", "value": "pem"},
        {"name": "K_CE_OVERRIDES", "value": r#"{"extensions":{"tenant":"a"}}"#},
    ]);
    assert_eq!(variables(&web)[0], expected);
}

#[tokio::test]
async fn a_sink_without_an_address_and_a_missing_subject_are_reported() {
    let effects = reconcile(given(orders(service_ref())).and(web())).await;
    assert!(effects.result.as_ref().is_err_and(|error| error.is_permanent()));
    let message = "Addressable could not be extracted from destination";
    assert_conditions(&status_of(&effects), &[("Available", "False", "NoAddressable", message)]);

    let effects = reconcile(given(orders(service_ref())).and(sink_service())).await;
    let message = r#"deployments.apps "web" not found"#;
    assert_conditions(
        &status_of(&effects),
        &[("Available", "False", "SubjectMissing", message), ("SinkProvided", "True", "", "")],
    );
}

#[tokio::test]
async fn a_deleted_binding_withdraws_the_injection() {
    let bound = reconcile(given(orders(service_ref())).and(sink_service()).and(web())).await;
    let mut deleted = bound.object::<SinkBinding>(KEY).unwrap();
    deleted.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-11-25T10:00:00Z")).unwrap());
    let effects = reconcile(given(deleted).and(bound.object::<Deployment>("shop/web").unwrap())).await;
    assert!(effects.result.is_ok());
    let after = json!(effects.object::<Deployment>("shop/web").unwrap());
    assert_eq!(variables(&after), variables(&json!(web())));
}

#[tokio::test]
async fn the_webhook_injects_before_a_subject_is_stored() {
    let bound = reconcile(given(orders(service_ref())).and(sink_service()).and(web())).await;
    let webhook = given(bound.object::<SinkBinding>(KEY).unwrap()).webhook(webhook);
    let admitted = webhook.admit(TestRequest::create(web())).await.unwrap().object;
    assert_eq!(variables(&admitted), variables(&json!(bound.object::<Deployment>("shop/web").unwrap())));
}

#[tokio::test]
async fn a_subject_in_another_namespace_is_refused() {
    let webhook = nothing().webhook(webhook);
    webhook.admit(TestRequest::create(orders(service_ref()))).await.unwrap();
    let mut elsewhere = orders(service_ref());
    elsewhere.spec.binding.subject.namespace = Some("elsewhere".into());
    let refusal = webhook.admit(TestRequest::create(&elsewhere)).await.unwrap_err().to_string();
    assert!(refusal.contains("mismatched namespaces: spec.subject.namespace"), "{refusal}");
}

/// A state with a subject of this Kind, named `web`.
fn given_subject(api_version: &str, kind: &str) -> Given {
    let mut binding = orders(json!({"uri": "http://sink/"}));
    binding.metadata.finalizers = None;
    let subject = &mut binding.spec.binding.subject;
    (subject.api_version, subject.kind) = (api_version.into(), kind.into());
    let mut object = json!(web());
    (object["apiVersion"], object["kind"]) = (json!(api_version), json!(kind));
    given(binding).and(serde_json::from_value::<DynamicObject>(object).unwrap())
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(|| {
        let deployment = || given_subject("apps/v1", "Deployment");
        failed_status_writes(sink_bindings, "sinkbindings", KEY, deployment)
            .unchecked_row("the subject is a StatefulSet", KEY, given_subject("apps/v1", "StatefulSet"))
            .unchecked_row("the subject is a DaemonSet", KEY, given_subject("apps/v1", "DaemonSet"))
            .unchecked_row("the subject is a Job", KEY, given_subject("batch/v1", "Job"))
    })
    .await;
}
