//! Children that were restored from a backup, and children that another component has applied.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use reknit_injection::Context;
use reknit_reconciler::{Controller, NotApplied, Owned, OwnedOptions};
use serde_json::{Value, json};

use super::{controlled_by, desired_deployment, set};
use crate::Fixture;

/// Returns the Deployments of a controller of this component, which replaces the earlier one.
fn deployments_of(component: &str, fixture: &Fixture, earlier: &[&str]) -> Owned<Deployment> {
    let cx = Context::preloaded(component, fixture.client.clone(), vec![]);
    let options = OwnedOptions::default().upgrading_from(earlier.iter().copied());
    Controller::of::<ConfigMap>(&cx).owns_with(options)
}

fn deployment(container: Value) -> Deployment {
    let desired = desired_deployment(3);
    set(&desired, "/spec/template/spec/containers/0", container);
    serde_json::from_value(desired.lock().unwrap().clone()).unwrap()
}

fn container() -> Value {
    json!({"name": "a", "image": "a"})
}

fn container_with_env() -> Value {
    json!({
        "name": "a", "image": "a", "env": [{"name": "X", "value": "x"}],
        "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
    })
}

impl Fixture {
    /// Deletes the owner and the child and creates both anew: the owner with a new uid, the child without owner
    /// references, but for an earlier one if given, and without managedFields. Returns the owner.
    async fn restore(&self, change: impl FnOnce(&mut Deployment)) -> ConfigMap {
        let mut child = self.child().await;
        self.deployments().delete("child", &DeleteParams::background()).await.unwrap();
        self.maps().delete("owner", &DeleteParams::default()).await.unwrap();
        let owner = self.create("owner", &[]).await;
        (child.metadata.managed_fields, child.metadata.owner_references) = (None, None);
        (child.metadata.uid, child.metadata.resource_version) = (None, None);
        change(&mut child);
        let velero = PostParams { field_manager: Some("velero".into()), ..PostParams::default() };
        self.deployments().create(&velero, &child).await.unwrap();
        owner
    }
}

#[tokio::test]
async fn a_restored_child_is_adopted_by_the_restored_owner() {
    let fixture = Fixture::new("restored").await;
    let former_uid = "01234567-89ab-cdef-0123-456789abcdef";
    let former_owner = controlled_by("ConfigMap", "owner", former_uid);
    for owners in [None, Some(vec![former_owner])] {
        let owner = fixture.create("owner", &[]).await;
        let deployments = deployments_of("applier", &fixture, &[]);
        deployments.apply(&owner, deployment(container())).await.unwrap();
        let owner = fixture.restore(|child| child.metadata.owner_references = owners).await;
        let restored = fixture.child().await;
        for deployments in [deployments, deployments_of("applier", &fixture, &[])] {
            let child = deployments.apply(&owner, deployment(container())).await.unwrap();
            assert_eq!(child.uid(), restored.uid(), "the child was replaced");
            let [controller] = child.owner_references() else { panic!("{:?}", child.owner_references()) };
            assert_eq!((Some(&controller.uid), controller.controller), (owner.uid().as_ref(), Some(true)));
        }
        fixture.deployments().delete("child", &DeleteParams::background()).await.unwrap();
        fixture.maps().delete("owner", &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn a_restored_child_of_another_owner_or_controller_is_refused() {
    let fixture = Fixture::new("restored").await;
    let owner = fixture.create("owner", &[]).await;
    // Each has a cache of its own, which no watch updates.
    let deployments = || deployments_of("applier", &fixture, &[]);
    deployments().apply(&owner, deployment(container())).await.unwrap();
    let applied = fixture.child().await.annotations()["reknit.dev/applied"].clone();
    let key = format!("{}/owner", fixture.namespace);
    assert!(applied.ends_with(&format!(" by applier for ConfigMap. {key}")), "{applied}");
    let other_uid = "01234567-89ab-cdef-0123-456789abcdef";
    let annotated = |value: Option<String>| {
        move |child: &mut Deployment| {
            let annotations = child.metadata.annotations.get_or_insert_default();
            annotations.remove("reknit.dev/applied");
            annotations.extend(value.map(|value| ("reknit.dev/applied".to_owned(), value)));
        }
    };
    for value in [
        None,
        Some(applied.replace("by applier", "by another")),
        Some(applied.replace("ConfigMap.", "Secret.")),
        Some(applied.replace("/owner", "/other")),
        Some(applied.replace(&fixture.namespace, "elsewhere")),
    ] {
        let message = format!("{value:?}");
        let owner = fixture.restore(annotated(value)).await;
        let refused = deployments().apply(&owner, deployment(container())).await.unwrap_err();
        assert!(matches!(refused, NotApplied::Taken { by: None, .. }), "{message}: {refused}");
        let advice = format!("make ConfigMap {key} its controller in metadata.ownerReferences");
        assert!(refused.to_string().contains(&advice), "{refused}");
    }
    let with_controller = |child: &mut Deployment| {
        annotated(Some(applied))(child);
        child.metadata.owner_references = Some(vec![controlled_by("ConfigMap", "other", other_uid)]);
    };
    let owner = fixture.restore(with_controller).await;
    let refused = deployments().apply(&owner, deployment(container())).await.unwrap_err();
    assert!(matches!(refused, NotApplied::Taken { by: Some(_), .. }), "{refused}");
}

#[tokio::test]
async fn a_renamed_component_takes_over_everything_that_the_earlier_one_applied() {
    let other_pre_stop = {
        let mut container = container();
        container["lifecycle"] = json!({"preStop": {"httpGet": {"path": "/", "port": 80}}});
        container
    };
    for wanted in [container(), other_pre_stop] {
        let fixture = Fixture::new("renamed").await;
        let owner = fixture.create("owner", &[]).await;
        deployments_of("a", &fixture, &[]).apply(&owner, deployment(container_with_env())).await.unwrap();
        let renamed = deployments_of("b", &fixture, &["a"]);
        renamed.apply(&owner, deployment(wanted.clone())).await.unwrap();
        let child = fixture.child().await;
        let stored = json!(child.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0]);
        assert_eq!(stored["env"], Value::Null);
        let pre_stop = &stored["lifecycle"]["preStop"];
        assert_eq!(pre_stop["exec"], Value::Null);
        assert_eq!(pre_stop["httpGet"]["path"], wanted["lifecycle"]["preStop"]["httpGet"]["path"]);
        let managers: Vec<_> =
            child.managed_fields().iter().filter_map(|entry| entry.manager.clone()).collect();
        assert_eq!(managers, [format!("b-{}", owner.uid().unwrap())]);
        assert!(child.annotations()["reknit.dev/applied"].contains(" by b for "));
    }
}

#[tokio::test]
async fn fields_of_a_backup_are_taken_over_from_the_manager_that_restored_it() {
    let fixture = Fixture::new("restored").await;
    let owner = fixture.create("owner", &[]).await;
    let deployments = deployments_of("applier", &fixture, &["velero"]);
    deployments.apply(&owner, deployment(container_with_env())).await.unwrap();
    let owner = fixture.restore(|_| {}).await;
    deployments.apply(&owner, deployment(container())).await.unwrap();
    let child = fixture.child().await;
    let stored = json!(child.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0]);
    assert_eq!((&stored["env"], &stored["lifecycle"]), (&Value::Null, &Value::Null));
}

/// As after a Kind has moved to another API group, for which the owner references of its children were corrected.
#[tokio::test]
async fn a_child_whose_owner_was_replaced_by_one_of_another_kind_loses_what_is_no_longer_applied() {
    let fixture = Fixture::new("moved").await;
    let owner = fixture.create("owner", &[]).await;
    deployments_of("applier", &fixture, &[]).apply(&owner, deployment(container_with_env())).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let secret = serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap();
    let new_owner = secrets.create(&PostParams::default(), &secret).await.unwrap();
    let controller = controlled_by("Secret", "owner", &new_owner.uid().unwrap());
    fixture.change_child(json!({"metadata": {"ownerReferences": [controller]}})).await;
    let cx = Context::preloaded("applier", fixture.client.clone(), vec![]);
    let deployments: Owned<Deployment> = Controller::of::<Secret>(&cx).owns();
    deployments.apply(&new_owner, deployment(container())).await.unwrap();
    let child = fixture.child().await;
    let stored = json!(child.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0]);
    assert_eq!((&stored["env"], &stored["lifecycle"]), (&Value::Null, &Value::Null));
    assert!(child.annotations()["reknit.dev/applied"].contains("for Secret."));
}
