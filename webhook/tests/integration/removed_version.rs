//! A version of a CustomResourceDefinition that is removed after a migration.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Method, Request};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, CustomResourceExt, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    client::Body,
    core::crd::merge_crds,
};
use reknit_testing::{ControlPlane, eventually};
use reknit_webhook::{Webhook, migrate_storage};
use serde_json::{Value, json};

use crate::{
    bulb::{v1, v1alpha1},
    conversion::{BULBS, TIMEOUT, managers},
};

fn bulbs(plane: &ControlPlane, resource: &ApiResource) -> Api<DynamicObject> {
    Api::namespaced_with(plane.client().unwrap(), "default", resource)
}

/// Applies a Bulb with this manager, in the version of the resource.
async fn apply(
    plane: &ControlPlane,
    resource: &ApiResource,
    manager: &str,
    fields: Value,
) -> kube::Result<DynamicObject> {
    let mut bulb = json!({"apiVersion": resource.api_version, "kind": "Bulb", "metadata": {"name": "x"}});
    json_patch::merge(&mut bulb, &fields);
    bulbs(plane, resource).patch("x", &PatchParams::apply(manager).force(), &Patch::Apply(bulb)).await
}

/// A client before whose first patch of the Bulb another client changes it.
fn late_client(plane: &ControlPlane, resource: &ApiResource, change: Patch<Value>) -> Client {
    let change = Arc::new(change);
    let (client, bulbs) = (plane.client().unwrap(), bulbs(plane, resource));
    let is_changed = Arc::new(AtomicBool::new(false));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, bulbs, is_changed) = (client.clone(), bulbs.clone(), is_changed.clone());
        let change = change.clone();
        async move {
            let is_patch = request.method() == Method::PATCH && request.uri().path().ends_with("/bulbs/x");
            if is_patch && !is_changed.swap(true, Ordering::Relaxed) {
                let params = PatchParams { field_manager: Some("other".into()), ..PatchParams::default() };
                bulbs.patch("x", &params, &change).await?;
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

/// Removes the old version from the definition.
async fn remove_old_version(plane: &ControlPlane) {
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client().unwrap());
    let mut definition = definitions.get(BULBS).await.unwrap();
    definition.spec.versions.retain(|version| version.name == "v1");
    let without = json!({"spec": {
        "versions": definition.spec.versions, "conversion": {"strategy": "None", "webhook": null},
    }});
    definitions.patch(BULBS, &PatchParams::default(), &Patch::Merge(without)).await.unwrap();
}

/// The API server converts an object to the version in which each of its managers has set its fields, which fails for a
/// version that it no longer knows (kubernetes/kubernetes#111937).
#[tokio::test(flavor = "multi_thread")]
async fn migrated_objects_can_be_applied_after_the_old_version_was_removed() {
    let plane = ControlPlane::start().await.unwrap();
    let crd = merge_crds(vec![v1::Bulb::crd(), v1alpha1::Bulb::crd()], "v1").unwrap();
    plane.install_crd(crd).await.unwrap();
    let webhook = Webhook::new("tests.reknit.dev").conversion::<v1alpha1::Bulb>();
    let _server = plane.serve_webhook("default", |_| Ok(webhook)).await.unwrap();
    let (old, new) = (ApiResource::erase::<v1alpha1::Bulb>(&()), ApiResource::erase::<v1::Bulb>(&()));
    let spec = json!({"spec": {"watts": 60.0, "colour": "red"}});
    eventually("the conversion of a bulb", TIMEOUT, async || {
        apply(&plane, &old, "gitops", spec.clone()).await
    })
    .await;
    let label = |value: &str| json!({"metadata": {"labels": {"a": value}}});
    apply(&plane, &old, "labeller", label("b")).await.unwrap();
    let edit = Patch::Merge(json!({"metadata": {"annotations": {"edited": "once"}}}));
    bulbs(&plane, &old)
        .patch("x", &PatchParams { field_manager: Some("edit".into()), ..PatchParams::default() }, &edit)
        .await
        .unwrap();

    let late = Patch::Merge(json!({"metadata": {"annotations": {"changed": "late"}}}));
    assert_eq!(migrate_storage(&late_client(&plane, &new, late), BULBS).await.unwrap(), 1);
    let migrated = managers(&bulbs(&plane, &new).get("x").await.unwrap());
    let managers: BTreeSet<_> =
        migrated.iter().map(|(manager, version, _)| (&**manager, &**version)).collect();
    let expected = ["gitops", "labeller", "edit", "other"].map(|manager| (manager, "tests.reknit.dev/v1"));
    assert_eq!(managers, expected.into());
    remove_old_version(&plane).await;
    let applied = eventually("a bulb in the new version", TIMEOUT, async || {
        apply(&plane, &new, "labeller", json!({"metadata": {"labels": {"c": "d"}}})).await
    })
    .await;
    assert_eq!(json!(applied.labels()), json!({"c": "d"}), "a manager still owns what it applied before");
    let applied = apply(&plane, &new, "gitops", json!({"spec": {"milliwatts": 9_000}})).await.unwrap();
    assert_eq!(applied.data["spec"], json!({"milliwatts": 9_000}), "the manager no longer applies a colour");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_migrated_although_its_managed_fields_become_fewer_meanwhile() {
    let plane = ControlPlane::start().await.unwrap();
    let crd = merge_crds(vec![v1::Bulb::crd(), v1alpha1::Bulb::crd()], "v1").unwrap();
    plane.install_crd(crd).await.unwrap();
    let webhook = Webhook::new("tests.reknit.dev").conversion::<v1alpha1::Bulb>();
    let _server = plane.serve_webhook("default", |_| Ok(webhook)).await.unwrap();
    let (old, new) = (ApiResource::erase::<v1alpha1::Bulb>(&()), ApiResource::erase::<v1::Bulb>(&()));
    let spec = json!({"spec": {"watts": 60.0, "colour": "red"}});
    eventually("the conversion of a bulb", TIMEOUT, async || {
        apply(&plane, &old, "gitops", spec.clone()).await
    })
    .await;
    apply(&plane, &old, "labeller", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();

    let first_is_removed: json_patch::Patch =
        serde_json::from_value(json!([{"op": "remove", "path": "/metadata/managedFields/0"}])).unwrap();
    let late = late_client(&plane, &new, Patch::Json(first_is_removed));
    assert_eq!(migrate_storage(&late, BULBS).await.unwrap(), 1);
    let migrated = managers(&bulbs(&plane, &new).get("x").await.unwrap());
    let [(_, version, _)] = &migrated[..] else { panic!("{migrated:?}") };
    assert_eq!(version, "tests.reknit.dev/v1");
}
