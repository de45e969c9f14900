//! The fields of applied children.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service, ServiceAccount},
    networking::v1::NetworkPolicy,
    rbac::v1::Role,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
    core::NamespaceResourceScope,
};
use reknit_injection::{Cached, Context, select};
use reknit_reconciler::{Controller, NotApplied};
use serde::Serialize;
use serde_json::{Value, json};

use super::{APPLY, NO_REQUESTS, Process, controlled_by, desired_deployment, not_applied, set};
use crate::Fixture;

#[tokio::test]
async fn a_child_is_created_once_and_cached_before_the_next_pass() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let process = Process::start(&fixture, &desired_deployment(3), select()).await;
    assert_eq!(process.pass_requests().await, ["GET child", APPLY]);
    for _ in 0..3 {
        assert_eq!(process.pass_requests().await, NO_REQUESTS);
    }
    let mut expected = controlled_by("ConfigMap", "owner", &owner.uid().unwrap());
    expected.block_owner_deletion = Some(true);
    assert_eq!(fixture.child().await.owner_references(), [expected]);
    let managers = fixture.child().await.managed_fields().to_vec();
    assert_eq!(managers[0].manager, Some(format!("applier-{}", owner.uid().unwrap())));
    assert_eq!(managers[0].operation.as_deref(), Some("Apply"));
}

#[tokio::test]
async fn a_new_process_sends_nothing_for_an_unchanged_child() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let _ = Process::start(&fixture, &desired, select()).await.pass_requests().await;
    assert_eq!(Process::start(&fixture, &desired, select()).await.pass_requests().await, NO_REQUESTS);
}

#[tokio::test]
async fn changes_of_applied_fields_are_reverted_and_other_fields_are_kept() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let process = Process::start(&fixture, &desired_deployment(3), select()).await;
    let _ = process.pass_requests().await;
    for drift in [
        json!({"spec": {"replicas": 9}}),
        json!({"metadata": {"labels": {"one": null}}}),
        json!({"metadata": {"annotations": {"reknit.dev/applied": null}}}),
        json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}}),
    ] {
        let before = fixture.child().await.resource_version();
        let patch = Patch::Merge(&drift);
        let changed = fixture.deployments().patch("child", &PatchParams::default(), &patch).await.unwrap();
        assert_ne!(changed.resource_version(), before);
        process
            .wait_for_child("the drift", |child| {
                child.and_then(ResourceExt::resource_version) == changed.resource_version()
            })
            .await;
        assert_eq!(process.pass_requests().await, [APPLY], "{drift}");
        assert_eq!(fixture.replicas().await, Some(3));
        let child = fixture.child().await;
        assert_eq!(child.labels()["one"], "1");
        let containers = child.spec.unwrap().template.spec.unwrap().containers;
        assert_eq!(containers[0].image.as_deref(), Some("a"));
        assert_eq!(containers[0].ports.as_ref().unwrap()[0].container_port, 80);
    }
    fixture.change_child(json!({"metadata": {"labels": {"theirs": "x"}}, "spec": {"paused": true}})).await;
    process
        .wait_for_child("the other client's label", |child| {
            child.is_some_and(|child| child.labels().contains_key("theirs"))
        })
        .await;
    assert_eq!(
        process.pass_requests().await,
        [APPLY],
        "not applied, although the change may be in an atomic list or map"
    );
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    assert_eq!(fixture.child().await.spec.unwrap().paused, Some(true));
    fixture.change_child(json!({"metadata": {"labels": {"theirs": "y"}}})).await;
    process
        .wait_for_child("the other client's label", |child| {
            child.is_some_and(|child| child.labels()["theirs"] == "y")
        })
        .await;
    assert_eq!(
        process.pass_requests().await,
        NO_REQUESTS,
        "applied after a change of another manager's label"
    );
}

/// Applies the child, changes it by another client, and checks that the next apply reverts the change.
async fn assert_drift_is_reverted<T>(child: Value, drift: Value)
where
    T: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
{
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let cx = Context::preloaded("applier", fixture.client.clone(), vec![]);
    let children = Controller::of::<ConfigMap>(&cx).owns::<T>();
    let apply = async || {
        let applied = children.apply(&owner, serde_json::from_value(child.clone()).unwrap()).await.unwrap();
        let mut applied = serde_json::to_value(&*applied).unwrap();
        (applied["metadata"].take()["resourceVersion"].take(), applied)
    };
    let created = apply().await;
    assert_eq!(apply().await, created, "a second apply changed the child");
    let (others, own) = (&fixture.client, &cx.client());
    let [others, own]: [Api<T>; 2] =
        [others, own].map(|client| Api::namespaced(client.clone(), &fixture.namespace));
    others.patch("child", &PatchParams::default(), &Patch::Merge(&drift)).await.unwrap();
    let drifted = serde_json::to_value(own.get("child").await.unwrap()).unwrap();
    assert_ne!(drifted["metadata"]["resourceVersion"], created.0);
    assert_eq!(apply().await.1, created.1, "{drift}");
}

#[tokio::test]
async fn additions_to_atomic_lists_and_maps_are_reverted() {
    let child = |field: &str, value: Value| json!({"metadata": {"name": "child"}, field: value});
    assert_drift_is_reverted::<Service>(
        child("spec", json!({"selector": {"app": "a"}, "ports": [{"port": 80}]})),
        json!({"spec": {"selector": {"tier": "web"}}}),
    )
    .await;
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let mut narrowed = rule.clone();
    narrowed["resourceNames"] = json!(["one"]);
    assert_drift_is_reverted::<Role>(child("rules", json!([rule])), json!({"rules": [narrowed]})).await;
    assert_drift_is_reverted::<NetworkPolicy>(
        child("spec", json!({"podSelector": {}})),
        json!({"spec": {"podSelector": {"matchLabels": {"app": "a"}}}}),
    )
    .await;
}

#[tokio::test]
async fn changes_of_a_secret_with_string_data_are_reverted() {
    let secret = json!({"metadata": {"name": "child"}, "data": {"a": "YQ=="}, "stringData": {"b": "b"}});
    assert_drift_is_reverted::<Secret>(secret, json!({"data": {"b": "YQ=="}})).await;
}

#[tokio::test]
async fn fields_that_are_no_longer_applied_are_removed_by_a_new_process_too() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    let _ = process.pass_requests().await;
    fixture.change_child(json!({"metadata": {"labels": {"theirs": "x"}}})).await;
    set(&desired, "/metadata/labels", json!({"one": "1"}));
    let process = Process::start(&fixture, &desired, select()).await;
    assert_eq!(process.pass_requests().await, [APPLY]);
    let labels = fixture.child().await.labels().clone();
    assert_eq!(labels, [("one".into(), "1".into()), ("theirs".into(), "x".into())].into());
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
}

#[tokio::test]
async fn a_value_that_the_api_server_normalises_is_applied_once_per_process() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    set(
        &desired,
        "/spec/template/spec/containers/0",
        json!({
            "name": "a", "image": "a", "resources": {"limits": {"cpu": "1000m"}}, "workingDir": "",
        }),
    );
    let process = Process::start(&fixture, &desired, select()).await;
    assert_eq!(process.pass_requests().await, ["GET child", APPLY]);
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    let version = fixture.child().await.resource_version();
    let process = Process::start(&fixture, &desired, select()).await;
    assert_eq!(process.pass_requests().await, [APPLY]);
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    assert_eq!(fixture.child().await.resource_version(), version, "the second process changed the child");
    fixture.change_child(json!({"spec": {"replicas": 9}})).await;
    process
        .wait_for_child("the drift", |child| {
            child.is_some_and(|child| child.spec.as_ref().unwrap().replicas == Some(9))
        })
        .await;
    assert_eq!(process.pass_requests().await, [APPLY]);
}

#[tokio::test]
async fn a_change_of_an_immutable_field_is_an_error() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    let _ = process.pass_requests().await;
    set(&desired, "/spec/selector/matchLabels", json!({"app": "b"}));
    set(&desired, "/spec/template/metadata/labels", json!({"app": "b"}));
    let error = process.pass().await.unwrap_err();
    let NotApplied::Refused { child, source } = not_applied(&error) else { panic!("{error}") };
    assert_eq!(*child, format!("Deployment {}/child", fixture.namespace));
    assert!(source.to_string().contains("field is immutable"), "{source}");
    assert!(!error.is_conflict() && !error.is_permanent());
}

#[tokio::test]
async fn an_object_that_was_read_can_be_applied_again() {
    // An object that was read has a uid, a resourceVersion, managedFields and all other metadata.
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    let _ = process.pass_requests().await;
    let mut read = fixture.child().await;
    read.spec.as_mut().unwrap().replicas = Some(4);
    *desired.lock().unwrap() = serde_json::to_value(read).unwrap();
    assert_eq!(process.pass_requests().await, [APPLY]);
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    assert_eq!(fixture.replicas().await, Some(4));
    for _ in 0..3 {
        *desired.lock().unwrap() = serde_json::to_value(fixture.child().await).unwrap();
        assert_eq!(
            process.pass_requests().await,
            NO_REQUESTS,
            "the hash annotation that was read counts as a change"
        );
    }
}

#[tokio::test]
async fn a_child_of_another_kind_needs_no_spec() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let cx =
        Context::preloaded("applier", fixture.client.clone(), vec![serde_json::to_value(&owner).unwrap()]);
    let accounts = Controller::of::<ConfigMap>(&cx).owns::<ServiceAccount>();
    let metadata = ObjectMeta { name: Some("child".into()), ..ObjectMeta::default() };
    let account =
        ServiceAccount { metadata, automount_service_account_token: Some(false), ..Default::default() };
    let created = accounts.apply(&owner, account).await.unwrap();
    assert_eq!(created.namespace().as_deref(), Some(fixture.namespace.as_str()));
    assert_eq!(accounts.of(&owner).count(), 1, "the created child is not in the cache");
}
