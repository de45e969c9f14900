//! The handover from a controller that updates its children to a controller that applies them, on a real API server.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Resource, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use reknit_injection::Context;
use reknit_reconciler::{Applied, Controller, Kinds, Owned, OwnedOptions, controller_reference};
use reknit_testing::eventually;
use serde_json::{Value, json};

use crate::{Fixture, TIMEOUT, children::client_with_hook_before_patch};

/// The children of a new process whose cache has these objects. They take over the fields of the field managers
/// `earlier`.
fn children_of_new_process(fixture: &Fixture, objects: &[&ConfigMap], earlier: &[&str]) -> Owned<ConfigMap> {
    let objects = objects.iter().map(|object| serde_json::to_value(object).unwrap()).collect();
    let cx = Context::preloaded("reknit", fixture.client.clone(), objects);
    let options = OwnedOptions::default().upgrading_from(earlier.iter().copied());
    Controller::of::<ConfigMap>(&cx).owns_with(options)
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

/// The Deployment `child` with these environment variables and this label.
fn deployment(env: &Value, label: &str) -> Value {
    let container = json!({"name": "main", "image": "i", "env": env});
    json!({
        "metadata": {"name": "child", "labels": {label: "yes"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}},
        },
    })
}

/// Creates the Deployment `child` as the Go program `controller` does, and updates it with an environment variable and
/// a label that the new controller does not set.
async fn deployment_of_go_controller(fixture: &Fixture, owner: &ConfigMap) -> Deployment {
    let go = PostParams { field_manager: Some("controller".into()), ..PostParams::default() };
    let mut created: Deployment = serde_json::from_value(deployment(&json!([]), "kept")).unwrap();
    created.metadata.owner_references = Some(vec![controller_reference(owner)]);
    let created = fixture.deployments().create(&go, &created).await.unwrap();
    let env = json!([{"name": "KEPT", "value": "by-go"}, {"name": "STALE", "value": "by-go"}]);
    let mut changed: Deployment = serde_json::from_value(deployment(&env, "stale")).unwrap();
    changed.metadata.owner_references.clone_from(&created.metadata.owner_references);
    changed.metadata.resource_version.clone_from(&created.metadata.resource_version);
    changed.labels_mut().insert("kept".into(), "yes".into());
    fixture.deployments().replace("child", &go, &changed).await.unwrap()
}

/// The Deployment that the new controller applies.
fn desired_deployment() -> Value {
    deployment(&json!([{"name": "KEPT", "value": "by-reknit"}]), "kept")
}

/// Asserts that the Deployment has the desired fields and the uid of the earlier one, and nothing else that the Go
/// controller set.
async fn assert_handed_over(fixture: &Fixture, by_go: &Deployment) {
    let stored = fixture.deployments().get("child").await.unwrap();
    assert_eq!(stored.uid(), by_go.uid(), "the child was created again");
    assert_eq!(json!(stored.labels()), json!({"kept": "yes"}));
    let template = &json!(stored.spec)["template"];
    assert_eq!(template["spec"]["containers"][0]["env"], json!([{"name": "KEPT", "value": "by-reknit"}]));
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

#[tokio::test]
async fn an_environment_variable_and_a_label_of_an_earlier_controller_are_removed_from_a_deployment() {
    let fixture = Fixture::new("handover").await;
    let owner = fixture.create("owner", &[]).await;
    let by_go = deployment_of_go_controller(&fixture, &owner).await;
    assert_eq!(by_go.labels().len(), 2);
    let cached = vec![json!(owner), json!(by_go)];
    let cx = Context::preloaded("reknit", fixture.client.clone(), cached);
    let options = OwnedOptions::default().upgrading_from(["controller"]);
    let children: Owned<Deployment> = Controller::of::<ConfigMap>(&cx).owns_with(options);
    children.apply(&owner, serde_json::from_value(desired_deployment()).unwrap()).await.unwrap();
    assert_handed_over(&fixture, &by_go).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_an_earlier_controller_are_removed_from_a_child_of_a_kind_that_a_template_names() {
    let fixture = Fixture::new("handover").await;
    let owner = fixture.create("owner", &[]).await;
    let by_go = deployment_of_go_controller(&fixture, &owner).await;
    let (children, informers) = {
        let cx = Context::new("reknit", fixture.client.clone());
        let mut build = Controller::of::<ConfigMap>(&cx);
        let options = OwnedOptions::default().upgrading_from(["controller"]);
        (build.owns_any(Kinds::any(), options), cx.informers())
    };
    informers.start();
    let kind = async || children.kind(&owner, "apps/v1", "Deployment").await.ok();
    let deployments = eventually("the first list of Deployments", TIMEOUT, kind).await;
    let desired: DynamicObject = serde_json::from_value(desired_deployment()).unwrap();
    deployments.apply(&owner, desired).await.unwrap();
    assert_handed_over(&fixture, &by_go).await;
}

#[tokio::test]
async fn a_handover_of_fields_that_another_client_has_just_given_up_is_a_conflict() {
    let fixture = Fixture::new("handover").await;
    let owner = fixture.create("owner", &[]).await;
    let by_go = child_of_go_controller(&fixture, &owner).await;
    let maps = fixture.maps();
    let give_up = async move {
        let all = Patch::Merge(json!({"metadata": {"managedFields": [{}]}}));
        maps.patch("child", &PatchParams::default(), &all).await.unwrap();
    };
    let client = client_with_hook_before_patch(&fixture.client, give_up);
    let cx = Context::preloaded("reknit", client, vec![json!(owner), json!(by_go)]);
    let options = OwnedOptions::default().upgrading_from(["controller"]);
    let children: Owned<ConfigMap> = Controller::of::<ConfigMap>(&cx).owns_with(options);
    let desired = subscription(json!({"subscriber": "a"}));
    let error = children.apply(&owner, desired.clone()).await.unwrap_err();
    assert!(reknit_reconciler::Error::from(error).is_conflict(), "the API server answers 422");
    children.apply(&owner, desired).await.unwrap();
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
