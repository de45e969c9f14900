//! Objects that somebody has applied in a version which was then removed from the CustomResourceDefinition. The API server
//! cannot convert them to the version that their managed fields name (kubernetes/kubernetes#111937).

use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceDefinition, CustomResourceDefinitionVersion,
    },
};
use kube::{
    Api, CustomResource, CustomResourceExt, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use reknit_apis::kind;
use reknit_injection::Context;
use reknit_reconciler::{
    Controller, FinalizeKind, Key, Outcome, Owned, ReconcileKind, Result, controller_reference,
};
use reknit_testing::{ControlPlane, ControllerExt, eventually};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{FINALIZER, TIMEOUT};

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "removed.reknit.dev", version = "v1", kind = "Widget", namespaced)]
struct WidgetSpec {
    size: Option<u32>,
    color: Option<String>,
}

kind!(Widget {});

/// Applies a child without a color.
struct Parent(Owned<Widget>);

impl ReconcileKind for Parent {
    type Kind = Namespace;
    async fn reconcile_kind(&self, namespace: &Namespace, _: &mut ()) -> Result<Outcome> {
        let mut child = Widget::new("child", WidgetSpec { size: Some(2), color: None });
        child.metadata.namespace = namespace.metadata.name.clone();
        self.0.apply(namespace, child).await?;
        Ok(Outcome::done())
    }
}

struct Idle;

impl ReconcileKind for Idle {
    type Kind = Widget;
    async fn reconcile_kind(&self, _: &Widget, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Idle {
    async fn finalize_kind(&self, _: &Widget, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

/// The control plane, with a definition whose version v1alpha1 is served.
async fn plane() -> &'static ControlPlane {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let plane = ControlPlane::shared().await.unwrap();
    INSTALLED.get_or_init(|| install(plane)).await;
    plane
}

fn definitions(plane: &ControlPlane) -> Api<CustomResourceDefinition> {
    Api::all(plane.client().unwrap())
}

async fn install(plane: &ControlPlane) {
    let mut definition = Widget::crd();
    let v1 = definition.spec.versions[0].clone();
    let old = CustomResourceDefinitionVersion { name: "v1alpha1".into(), storage: false, ..v1 };
    definition.spec.versions.push(old);
    plane.install_crd(definition).await.unwrap();
}

/// Applies a Widget in v1alpha1 with this metadata.
async fn apply_in_old_version(plane: &ControlPlane, namespace: &str, name: &str, mut metadata: Value) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("removed.reknit.dev", "v1alpha1", "Widget"));
    metadata["name"] = json!(name);
    let widget = json!({
        "apiVersion": resource.api_version, "kind": "Widget", "metadata": metadata, "spec": {"size": 1, "color": "red"},
    });
    let api: Api<DynamicObject> = Api::namespaced_with(plane.client().unwrap(), namespace, &resource);
    let (params, patch) = (PatchParams::apply("gitops"), Patch::Apply(widget));
    eventually("the old version to be served", TIMEOUT, async || api.patch(name, &params, &patch).await)
        .await;
}

/// Removes the old version, and waits until the API server has forgotten it.
async fn remove_old_version(plane: &ControlPlane) {
    let mut definition = definitions(plane).get(Widget::crd_name()).await.unwrap();
    definition.spec.versions.retain(|version| version.name == "v1");
    let patch = Patch::Merge(json!({"spec": {"versions": definition.spec.versions}}));
    definitions(plane).patch(Widget::crd_name(), &PatchParams::default(), &patch).await.unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("removed.reknit.dev", "v1alpha1", "Widget"));
    let api: Api<DynamicObject> = Api::all_with(plane.client().unwrap(), &resource);
    eventually("the removal of the old version", TIMEOUT, async || {
        api.list(&Default::default()).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn children_and_finalizers_are_applied_although_a_version_that_others_used_was_removed() {
    let plane = plane().await;
    let (client, namespace) = (plane.client().unwrap(), plane.namespace("removed").await.unwrap());
    let owner = Api::<Namespace>::all(client.clone()).get(&namespace).await.unwrap();
    let owned = json!({"ownerReferences": [controller_reference(&owner)]});
    apply_in_old_version(plane, &namespace, "child", owned).await;
    apply_in_old_version(plane, &namespace, "finalized", json!({})).await;
    remove_old_version(plane).await;
    let widgets: Api<Widget> = Api::namespaced(client.clone(), &namespace);

    let cached = json!(widgets.get("finalized").await.unwrap());
    let build = Controller::of::<Widget>(&Context::preloaded("test", client.clone(), vec![cached]))
        .finalizer(FINALIZER);
    let controller = build.apply_finalizer_as("reknit-test").reconciler(Idle).finalizing().build();
    assert_eq!(controller.once(&Key::new(&*namespace, "finalized")).await.unwrap(), Outcome::done());
    assert_eq!(widgets.get("finalized").await.unwrap().finalizers(), [FINALIZER]);

    let cached = [json!(owner), json!(widgets.get("child").await.unwrap())];
    let mut build = Controller::of::<Namespace>(&Context::preloaded("test", client, cached.to_vec()));
    let parent = Parent(build.owns());
    let controller = build.reconciler(parent).build();
    assert_eq!(controller.once(&Key::new(None, &namespace)).await.unwrap(), Outcome::done());
    let child = widgets.get("child").await.unwrap();
    assert_eq!((child.spec.size, child.spec.color.as_deref()), (Some(2), Some("red")));
    let versions: Vec<_> = child.managed_fields().iter().map(|entry| entry.api_version.as_deref()).collect();
    assert_eq!(versions, [Some(&*Widget::api_version(&())); 2]);
}
