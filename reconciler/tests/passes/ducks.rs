//! Objects that are read as duck types, and their observers.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Service},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    ResourceExt,
    core::{Expression, Selector},
};
use reknit_apis::{KReference, Reference};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Duck, NoFields, Tracked, TrackedAny, controller_reference};
use reknit_testing::ApiServer;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Lamp, key, lamp};

#[derive(Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
struct ChannelStatus {
    dead_letter_sink_uri: Option<String>,
    subscribers: Vec<String>,
}

type Channel = Duck<NoFields, ChannelStatus>;

fn object(kind: &str, name: &str, fields: Value) -> Value {
    let metadata = json!({"name": name, "namespace": "default", "labels": {"app": "orders"}});
    let mut object = json!({"apiVersion": "messaging.knative.dev/v1", "kind": kind, "metadata": metadata});
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    object
}

fn reference(kind: &str, name: &str) -> KReference {
    let api_version = "messaging.knative.dev/v1".into();
    KReference { api_version, kind: kind.into(), name: name.into(), ..KReference::default() }
}

fn tracking(objects: Vec<Value>) -> (Context, TrackedAny) {
    let cx = Context::preloaded("test", ApiServer::new().client(), objects);
    let anything = Controller::of::<Lamp>(&cx).track_any();
    (cx, anything)
}

#[tokio::test]
async fn objects_of_any_kind_are_read_as_a_duck_type() {
    let ready = json!({"spec": {"delivery": {"retry": 3}}, "status": {"deadLetterSinkUri": "http://sink"}});
    let (_cx, channels) = tracking(vec![
        object("InMemoryChannel", "ready", ready),
        object("InMemoryChannel", "new", json!({})),
        object("InMemoryChannel", "null", json!({"spec": null, "status": null})),
        object("KafkaChannel", "other", json!({"status": {"subscribers": ["a"]}})),
    ]);
    let get = async |kind: &str, name: &str| {
        channels.get_as::<Channel>(&lamp(), &reference(kind, name)).await.unwrap()
    };
    let ready = get("InMemoryChannel", "ready").await.unwrap();
    assert_eq!(ready.status.dead_letter_sink_uri.as_deref(), Some("http://sink"));
    assert_eq!(
        (ready.api_version.as_str(), ready.kind.as_str()),
        ("messaging.knative.dev/v1", "InMemoryChannel")
    );
    assert_eq!(ready.name_any(), "ready");
    for name in ["new", "null"] {
        assert_eq!(get("InMemoryChannel", name).await.unwrap().status, ChannelStatus::default());
    }
    assert_eq!(get("KafkaChannel", "other").await.unwrap().status.subscribers, ["a"]);
    assert!(get("KafkaChannel", "none").await.is_none());
}

#[tokio::test]
async fn selected_objects_are_read_as_a_duck_type() {
    let (_cx, channels) =
        tracking(vec![object("Channel", "a", json!({})), object("Channel", "b", json!({}))]);
    let labels = Some([("app".into(), "orders".into())].into());
    let selector = LabelSelector { match_labels: labels, ..LabelSelector::default() };
    let reference_to_a = reference("Channel", "a");
    let selecting = Reference {
        api_version: "messaging.knative.dev/v1".into(),
        kind: "Channel".into(),
        selector: Some(selector),
        ..Reference::default()
    };
    let found = channels.all_as::<Channel>(&lamp(), &selecting).await.unwrap();
    let mut names: Vec<_> = found.iter().map(ResourceExt::name_any).collect();
    names.sort();
    assert_eq!(names, ["a", "b"]);
    let observed = channels.get(&lamp(), &reference_to_a).await.unwrap();
    assert_eq!(channels.observers(&observed.unwrap()), [key()]);
}

#[tokio::test]
async fn an_object_of_another_form_is_a_permanent_error_that_names_the_field() {
    let (_cx, channels) =
        tracking(vec![object("Channel", "bad", json!({"status": {"subscribers": ["a", 7]}}))]);
    let error = channels.get_as::<Channel>(&lamp(), &reference("Channel", "bad")).await.unwrap_err();
    assert!(error.is_permanent());
    assert_eq!(
        error.to_string(),
        "failed to decode Channel default/bad: status.subscribers[1]: invalid type: integer `7`, expected a string"
    );
}

#[tokio::test]
async fn the_observers_of_an_object_are_found_by_its_name_and_its_labels() {
    let server = ApiServer::new();
    let service = |name: &str, labels: Value| -> Service {
        let metadata = json!({"name": name, "namespace": "default", "labels": labels});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    };
    let cx = Context::preloaded("test", server.client(), vec![]);
    let services: Tracked<Service> = Controller::of::<Lamp>(&cx).track();
    let mut other = lamp();
    other.metadata.name = Some("y".into());
    services.get(&lamp(), "web");
    let is_web: Selector = Expression::Equal("app".into(), "web".into()).into();
    assert_eq!(services.matching(&other, &is_web).count(), 0);
    let y = reknit_reconciler::Key::new("default", "y");
    assert_eq!(services.observers(&service("web", json!({}))), [key()]);
    assert_eq!(services.observers(&service("web", json!({"app": "web"}))), [key(), y.clone()]);
    assert_eq!(services.observers(&service("db", json!({"app": "web"}))), [y]);
    assert!(services.observers(&service("db", json!({}))).is_empty());
}

#[test]
fn a_controller_reference_names_kind_version_and_uid_of_the_owner() {
    let mut map = ConfigMap::default();
    map.metadata.owner_references = Some(vec![controller_reference(&lamp())]);
    let reference = json!({
        "apiVersion": "demo.reknit.dev/v1", "kind": "Lamp", "name": "x", "uid": "uid-x",
        "controller": true, "blockOwnerDeletion": true,
    });
    assert_eq!(serde_json::to_value(&map).unwrap()["metadata"]["ownerReferences"], json!([reference]));
}
