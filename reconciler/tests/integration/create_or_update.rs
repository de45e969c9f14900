//! Children that are created and updated without server-side apply, on a real API server.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
};
use reknit_injection::Context;
use reknit_reconciler::{Applied, Controller, Owned, controller_reference};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Fixture, children::recording_client};

/// The Deployment `child` with the required fields only. The API server fills in all others.
fn minimal_deployment() -> Deployment {
    let containers = json!([{"name": "main", "image": "first"}]);
    let deployment = json!({
        "metadata": {"name": "child"},
        "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": containers}},
        },
    });
    serde_json::from_value(deployment).unwrap()
}

/// Creates the Deployment, or sets the image of its container.
async fn set_image(children: &Owned<Deployment>, owner: &ConfigMap, image: &str) -> Applied<Deployment> {
    let set = |child: &mut Deployment| {
        let template = &mut child.spec.as_mut().unwrap().template;
        template.spec.as_mut().unwrap().containers[0].image = Some(image.into());
    };
    children.create_or_update(owner, minimal_deployment(), set).await.unwrap()
}

#[tokio::test]
async fn a_child_with_defaults_of_the_api_server_is_created_once_and_updated_only_if_it_differs() {
    let fixture = Fixture::new("create-or-update").await;
    let owner = fixture.create("owner", &[]).await;
    let (client, recorded) = recording_client(&fixture.client);
    let take_requests = || std::mem::take(&mut *recorded.lock().unwrap());
    let cx = Context::preloaded("reknit", client, vec![json!(owner)]);
    let children: Owned<Deployment> = Controller::of::<ConfigMap>(&cx).owns();

    let created = set_image(&children, &owner, "first").await;
    assert!(matches!(&created, Applied::Created(_)), "{created:?}");
    assert_eq!(created.owner_references(), [controller_reference(&owner)]);
    take_requests();
    let unchanged = set_image(&children, &owner, "first").await;
    assert!(matches!(&unchanged, Applied::Unchanged(_)), "{unchanged:?}");
    assert_eq!(take_requests(), [""; 0]);

    let scaled = Patch::Merge(json!({"metadata": {"labels": {"theirs": "x"}}, "spec": {"replicas": 3}}));
    // By a client whose answers enter the cache.
    let other_manager = PatchParams { field_manager: Some("kubectl".into()), ..PatchParams::default() };
    let deployments: Api<Deployment> = Api::namespaced(cx.client(), &fixture.namespace);
    deployments.patch("child", &other_manager, &scaled).await.unwrap();
    take_requests();
    let updated = set_image(&children, &owner, "second").await;
    assert!(matches!(&updated, Applied::Updated { .. }), "{updated:?}");
    assert_eq!(take_requests(), ["PUT child"]);

    let stored = fixture.deployments().get("child").await.unwrap();
    assert_eq!(stored.uid(), created.uid());
    assert_eq!(stored.labels()["theirs"], "x");
    let mut expected = json!(created.spec);
    expected["replicas"] = json!(3);
    expected["template"]["spec"]["containers"][0]["image"] = json!("second");
    assert_eq!(expected["strategy"]["type"], "RollingUpdate", "the API server sets no default");
    assert_eq!(json!(stored.spec), expected);
    let managers: Vec<_> = stored
        .managed_fields()
        .iter()
        .map(|entry| (entry.manager.as_deref(), entry.operation.as_deref()))
        .collect();
    assert!(managers.contains(&(Some("reknit"), Some("Update"))), "{managers:?}");
}

#[tokio::test]
async fn the_string_data_of_a_secret_is_written_once_and_is_not_reported_as_dropped() {
    let fixture = Fixture::new("string-data").await;
    let owner = fixture.create("owner", &[]).await;
    let (client, recorded) = recording_client(&fixture.client);
    let take_requests = || std::mem::take(&mut *recorded.lock().unwrap());
    let cx = Context::preloaded("reknit", client, vec![json!(owner)]);
    let mut build = Controller::of::<ConfigMap>(&cx);
    let (secrets, recorder): (Owned<Secret>, _) = (build.owns(), build.recorder());
    let set = |secret: &mut Secret| secret.string_data = Some([("key".to_owned(), "text".to_owned())].into());
    let named = ObjectMeta { name: Some("child".into()), ..ObjectMeta::default() };
    let write = async || {
        let new = Secret { metadata: named.clone(), ..Secret::default() };
        secrets.create_or_update(&owner, new, set).await.unwrap()
    };
    assert_eq!(write().await.data.as_ref().unwrap()["key"].0, b"text");
    take_requests();
    assert!(matches!(write().await, Applied::Unchanged(_)));
    assert_eq!(take_requests(), [""; 0]);
    let mut another = Secret {
        metadata: ObjectMeta { name: None, generate_name: Some("a-".into()), ..named },
        ..Secret::default()
    };
    set(&mut another);
    assert_eq!(secrets.create(&owner, another).await.unwrap().data.as_ref().unwrap()["key"].0, b"text");
    recorder.flush().await;
    let events = fixture.events_about(&fixture.namespace, &owner.uid().unwrap()).await;
    assert!(events.is_empty(), "{events:?}");
}

/// A ConfigMap without `binaryData`, as an older API has it.
#[derive(Resource, Serialize, Deserialize, Clone, Debug)]
#[resource(inherit = ConfigMap)]
struct OlderMap {
    metadata: ObjectMeta,
    data: Option<BTreeMap<String, String>>,
}

#[tokio::test]
async fn an_update_keeps_the_fields_that_the_type_of_the_child_does_not_have() {
    let fixture = Fixture::new("unknown-fields").await;
    let owner = fixture.create("owner", &[]).await;
    let cx = Context::preloaded("reknit", fixture.client.clone(), vec![json!(owner)]);
    let maps: Owned<OlderMap> = Controller::of::<ConfigMap>(&cx).owns();
    let named = ObjectMeta { name: Some("child".into()), ..ObjectMeta::default() };
    let write = async |value: &str| {
        let set = |map: &mut OlderMap| {
            map.data.get_or_insert_default().insert("key".into(), value.into());
        };
        let new = OlderMap { metadata: named.clone(), data: None };
        maps.create_or_update(&owner, new, set).await.unwrap()
    };
    write("first").await;
    let api: Api<ConfigMap> = Api::namespaced(cx.client(), &fixture.namespace);
    let binary = Patch::Merge(json!({"binaryData": {"theirs": "/w=="}}));
    api.patch("child", &PatchParams::default(), &binary).await.unwrap();
    let updated = write("second").await;
    assert!(matches!(&updated, Applied::Updated { .. }), "{updated:?}");
    let stored = api.get("child").await.unwrap();
    assert_eq!(stored.data.unwrap()["key"], "second");
    assert_eq!(stored.binary_data.unwrap()["theirs"].0, b"\xff");
}
