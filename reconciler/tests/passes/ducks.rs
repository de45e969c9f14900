//! Objects that are read as duck types.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use reknit_apis::KReference;
use reknit_injection::Context;
use reknit_reconciler::{Controller, Duck, Kinds, TrackedAny, controller_reference};
use reknit_testing::ApiServer;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Lamp, lamp};

#[derive(Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
struct ChannelStatus {
    dead_letter_sink_uri: Option<String>,
    subscribers: Vec<String>,
}

type Channel = Duck<ChannelStatus>;

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
    let anything = Controller::of::<Lamp>(&cx).track_any(Kinds::any());
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
