//! The handover from a controller that updates its children to a controller that applies them, on a real API server.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use reknit_injection::Context;
use reknit_reconciler::{Applied, Controller, Owned, controller_reference};
use serde_json::{Value, json};

use crate::Fixture;

/// The children of a new process whose cache has these objects. They take over the fields of the field managers
/// `earlier`.
fn children_of_new_process(fixture: &Fixture, objects: &[&ConfigMap], earlier: &[&str]) -> Owned<ConfigMap> {
    let objects = objects.iter().map(|object| serde_json::to_value(object).unwrap()).collect();
    let cx = Context::preloaded("reknit", fixture.client.clone(), objects);
    Controller::of::<ConfigMap>(&cx).owns().upgrading_from(earlier.iter().copied())
}

/// Creates and updates the child as the Go program `controller` does, and sets a field as kubectl does.
async fn child_of_go_controller(fixture: &Fixture, owner: &ConfigMap) -> ConfigMap {
    let mut child = subscription(json!({"subscriber": "a", "reply": "b"}));
    child.metadata.owner_references = Some(vec![controller_reference(owner)]);
    child.labels_mut().insert("made-by".into(), "go".into());
    let go = PostParams { field_manager: Some("controller".into()), ..PostParams::default() };
    let mut child = fixture.maps().create(&go, &child).await.unwrap();
    child.data.as_mut().unwrap().insert("delay".into(), "PT1S".into());
    fixture.maps().replace("child", &go, &child).await.unwrap();
    let kubectl = PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() };
    let noted = Patch::Merge(json!({"metadata": {"annotations": {"note": "kept"}}}));
    fixture.maps().patch("child", &kubectl, &noted).await.unwrap()
}

fn subscription(data: Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "child"}, "data": data})).unwrap()
}

#[tokio::test]
async fn fields_that_an_earlier_controller_updated_are_removed_by_the_first_apply() {
    let fixture = Fixture::new("handover").await;
    let owner = fixture.create("owner", &[]).await;
    let by_go = child_of_go_controller(&fixture, &owner).await;
    let children = children_of_new_process(&fixture, &[&owner, &by_go], &["controller"]);
    let desired = subscription(json!({"subscriber": "a"}));
    let applied = children.apply(&owner, desired.clone()).await.unwrap();
    assert!(matches!(&applied, Applied::Updated { .. }), "{applied:?}");

    let stored = fixture.maps().get("child").await.unwrap();
    assert_eq!(stored.data, desired.data, "fields of the earlier controller are left");
    assert!(stored.labels().is_empty());
    assert_eq!(stored.uid(), by_go.uid(), "the child was created again");
    assert_eq!(stored.annotations()["note"], "kept", "the field of another manager was removed");
    assert_eq!(stored.owner_references(), [controller_reference(&owner)]);
    let managers: Vec<_> =
        stored.managed_fields().iter().map(|entry| entry.manager.clone().unwrap()).collect();
    assert!(!managers.contains(&"controller".into()), "{managers:?}");

    let unchanged = children.apply(&owner, desired.clone()).await.unwrap();
    assert!(matches!(&unchanged, Applied::Unchanged(_)), "{unchanged:?}");
    let next_process = children_of_new_process(&fixture, &[&owner, &stored], &["controller"]);
    let unchanged = next_process.apply(&owner, desired).await.unwrap();
    assert_eq!(unchanged.meta().resource_version, stored.metadata.resource_version);
}

/// The data of the child after a process has applied one field and taken over the fields of these field managers.
async fn data_after_handover(earlier: &[&str]) -> Value {
    let fixture = Fixture::new("handover").await;
    let owner = fixture.create("owner", &[]).await;
    let by_go = child_of_go_controller(&fixture, &owner).await;
    let children = children_of_new_process(&fixture, &[&owner, &by_go], earlier);
    children.apply(&owner, subscription(json!({"subscriber": "a"}))).await.unwrap();
    json!(fixture.maps().get("child").await.unwrap().data)
}

#[tokio::test]
async fn stale_fields_remain_unless_the_earlier_controller_is_named() {
    let stale = json!({"subscriber": "a", "reply": "b", "delay": "PT1S"});
    assert_eq!(data_after_handover(&[]).await, stale);
    assert_eq!(data_after_handover(&["controller"]).await, json!({"subscriber": "a"}));
}

#[tokio::test]
async fn fields_of_managers_that_are_not_named_are_kept() {
    let fixture = Fixture::new("handover").await;
    let owner = fixture.create("owner", &[]).await;
    let by_go = child_of_go_controller(&fixture, &owner).await;
    let children = children_of_new_process(&fixture, &[&owner, &by_go], &["another"]);
    children.apply(&owner, subscription(json!({"subscriber": "c"}))).await.unwrap();
    let stored = fixture.maps().get("child").await.unwrap();
    assert_eq!(stored.data, subscription(json!({"subscriber": "c", "reply": "b", "delay": "PT1S"})).data);
}

#[tokio::test]
async fn a_child_that_the_cache_does_not_have_is_upgraded_too() {
    let fixture = Fixture::new("handover").await;
    let owner = fixture.create("owner", &[]).await;
    child_of_go_controller(&fixture, &owner).await;
    let children = children_of_new_process(&fixture, &[&owner], &["controller"]);
    let desired = subscription(json!({"subscriber": "a"}));
    children.apply(&owner, desired.clone()).await.unwrap();
    assert_eq!(fixture.maps().get("child").await.unwrap().data, desired.data);
}
