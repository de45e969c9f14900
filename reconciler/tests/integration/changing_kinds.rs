//! Kinds that are removed, and created anew with another scope or plural, while references and children name them.

use std::sync::{Arc, Mutex};

use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceDefinition, CustomResourceDefinitionVersion,
    },
};
use kube::{
    Api, Client, CustomResource, CustomResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ObjectMeta, Patch, PatchParams,
        PostParams,
    },
};
use reknit_apis::{KReference, kind};
use reknit_injection::{Context, Informer, internal::CurrentPass, select};
use reknit_reconciler::{
    Controller, FinalizeKind, Key, Kinds, Outcome, OwnedAny, OwnedOptions, ReconcileKind, Result, TrackedAny,
    controller_reference, internal::take_queued_with_causes,
};
use reknit_testing::{ControlPlane, ControllerExt, Controllers, eventually};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
/// The time within which a Kind that was created anew is found: an answer of discovery is checked every ten seconds.
const FOUND_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);
const VERSION: &str = "changing.reknit.dev/v1";

/// Copies the Gadget `source` into the Gadget `copy`, both in the namespace if they are namespaced, and counts the
/// copies.
struct Copier {
    sources: TrackedAny,
    copies: OwnedAny,
    counted: Arc<Mutex<Option<usize>>>,
}

impl ReconcileKind for Copier {
    type Kind = Namespace;
    async fn reconcile_kind(&self, namespace: &Namespace, _: &mut ()) -> Result<Outcome> {
        let copies = self.copies.of(namespace, [&reference(namespace, "copy")]).await?;
        *self.counted.lock().unwrap() = Some(copies.len());
        if let Some(source) = self.sources.get(namespace, &reference(namespace, "source")).await? {
            let copies = self.copies.kind(namespace, VERSION, "Gadget").await?;
            let metadata = ObjectMeta {
                name: Some("copy".into()),
                namespace: source.metadata.namespace.clone(),
                ..ObjectMeta::default()
            };
            let data = json!({"spec": source.data["spec"]});
            copies.apply(namespace, DynamicObject { types: None, metadata, data }).await?;
        }
        Ok(Outcome::done())
    }
}

fn reference(namespace: &Namespace, name: &str) -> KReference {
    KReference {
        api_version: VERSION.into(),
        kind: "Gadget".into(),
        namespace: namespace.metadata.name.clone(),
        name: name.into(),
        ..KReference::default()
    }
}

/// The definition of Gadgets.
fn gadgets(plural: &str, scope: &str) -> CustomResourceDefinition {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "metadata": {"name": format!("{plural}.changing.reknit.dev")},
        "spec": {
            "group": "changing.reknit.dev", "scope": scope, "names": {"kind": "Gadget", "plural": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    serde_json::from_value(definition).unwrap()
}

fn api_of_gadgets(client: &Client, namespace: &str, plural: &str, scope: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("changing.reknit.dev", "v1", "Gadget");
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    match scope {
        "Namespaced" => Api::namespaced_with(client.clone(), namespace, &resource),
        _ => Api::all_with(client.clone(), &resource),
    }
}

async fn remove(client: &Client, definition: &CustomResourceDefinition) {
    let name = definition.metadata.name.as_deref().unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.delete(name, &DeleteParams::default()).await.unwrap();
    let is_gone = async || definitions.get_opt(name).await.unwrap().is_none();
    eventually("the removal of the definition", TIMEOUT, is_gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_created_anew_with_another_plural_or_scope_is_read_and_written_again() {
    let plane = ControlPlane::start().await.unwrap();
    let (client, namespace) = (plane.client().unwrap(), plane.namespace("gadgets").await.unwrap());
    let (counted, own_namespace) = (Arc::new(Mutex::new(None)), namespace.clone());
    let copier = |counted: Arc<Mutex<Option<usize>>>| {
        move |cx: &Context| {
            let selection = select().field("metadata.name", &own_namespace);
            let mut build = Controller::selected::<Namespace>(cx, selection);
            let sources = build.track_any(Kinds::any());
            let copies = build.owns_any(Kinds::any(), OwnedOptions::default());
            Ok(build.reconciler(Copier { sources, copies, counted }).build())
        }
    };
    let controllers = Controllers::new(client.clone()).controller(copier(counted.clone())).start();
    let variants = [("gadgets", "Namespaced"), ("gizmos", "Namespaced"), ("gizmos", "Cluster")];
    for (number, (plural, scope)) in variants.into_iter().enumerate() {
        let definition = gadgets(plural, scope);
        plane.install_crd(definition.clone()).await.unwrap();
        let gadgets = api_of_gadgets(&client, &namespace, plural, scope);
        let source: DynamicObject = serde_json::from_value(json!({
            "apiVersion": VERSION, "kind": "Gadget", "metadata": {"name": "source"}, "spec": {"number": number},
        }))
        .unwrap();
        gadgets.create(&PostParams::default(), &source).await.unwrap();
        let began = std::time::Instant::now();
        let is_copied = async || {
            let copy = gadgets.get("copy").await.map_err(|error| error.to_string())?;
            if copy.data["spec"] == source.data["spec"] { Ok(()) } else { Err(copy.data["spec"].to_string()) }
        };
        eventually(format!("a copy in {plural} ({scope})"), TIMEOUT, is_copied).await;
        assert!(began.elapsed() < FOUND_WITHIN, "{plural} ({scope}): {:?}", began.elapsed());

        remove(&client, &definition).await;
        let is_empty = async || *counted.lock().unwrap() == Some(0);
        eventually("children of the removed Kind are none", TIMEOUT, is_empty).await;
    }
    controllers.stop().await;
}

/// Lists the children of the namespace, whose reference names v1, by their versions.
struct Lister {
    children: OwnedAny,
    versions: Arc<Mutex<Vec<String>>>,
}

impl ReconcileKind for Lister {
    type Kind = Namespace;
    async fn reconcile_kind(&self, namespace: &Namespace, _: &mut ()) -> Result<Outcome> {
        let children = self.children.of(namespace, [&reference(namespace, "child")]).await?;
        let versions = children.iter().filter_map(|child| Some(child.types.clone()?.api_version));
        *self.versions.lock().unwrap() = versions.collect();
        Ok(Outcome::done())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn children_whose_version_is_no_longer_served_are_listed_in_another_one() {
    let plane = ControlPlane::shared().await.unwrap();
    let (client, namespace) = (plane.client().unwrap(), plane.namespace("versions").await.unwrap());
    let mut definition = gadgets("gadgets", "Namespaced");
    let v2 = CustomResourceDefinitionVersion { name: "v2".into(), ..definition.spec.versions[0].clone() };
    definition.spec.versions[0].storage = false;
    definition.spec.versions.push(v2);
    plane.install_crd(definition.clone()).await.unwrap();
    let owner = Api::<Namespace>::all(client.clone()).get(&namespace).await.unwrap();
    let gadgets = api_of_gadgets(&client, &namespace, "gadgets", "Namespaced");
    let child: DynamicObject = serde_json::from_value(json!({
        "apiVersion": VERSION, "kind": "Gadget",
        "metadata": {"name": "child", "ownerReferences": [controller_reference(&owner)]},
    }))
    .unwrap();
    gadgets.create(&PostParams::default(), &child).await.unwrap();
    let versions = Arc::new(Mutex::new(Vec::new()));
    let listed = versions.clone();
    let lister = move |cx: &Context| {
        let mut build = Controller::selected::<Namespace>(cx, select().field("metadata.name", &namespace));
        let children = build.owns_any(Kinds::any(), OwnedOptions::default());
        Ok(build.reconciler(Lister { children, versions: listed }).build())
    };
    let controllers = Controllers::new(client.clone()).controller(lister).start();
    let are = async |expected: &str| {
        eventually(format!("the child in {expected}"), TIMEOUT, async || {
            let versions = versions.lock().unwrap().clone();
            if versions == [expected] { Ok(()) } else { Err(format!("{versions:?}")) }
        })
        .await;
    };
    are(VERSION).await;

    definition.spec.versions[0].served = false;
    let unserved = Patch::Merge(json!({"spec": {"versions": definition.spec.versions}}));
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.patch("gadgets.changing.reknit.dev", &PatchParams::default(), &unserved).await.unwrap();
    are("changing.reknit.dev/v2").await;
    controllers.stop().await;
}

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "served.reknit.dev", version = "v1", kind = "Widget", namespaced)]
struct WidgetSpec {}

kind!(Widget {});

/// A reconciler that has nothing to do.
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

/// The API server answers 404 then, which does not mean that the object is gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_version_is_not_served_for_a_while_is_finalized_afterwards() {
    let plane = ControlPlane::shared().await.unwrap();
    let (client, namespace) = (plane.client().unwrap(), plane.namespace("served").await.unwrap());
    plane.install_crd(Widget::crd()).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let widgets: Api<Widget> = Api::namespaced(client.clone(), &namespace);
    let mut widget = Widget::new("w", WidgetSpec {});
    widget.metadata.finalizers = Some(vec!["served.reknit.dev/w".into()]);
    widgets.create(&PostParams::default(), &widget).await.unwrap();
    widgets.delete("w", &DeleteParams::default()).await.unwrap();
    let terminating = widgets.get("w").await.unwrap();
    let controller = {
        let cx = Context::preloaded("test", client.clone(), vec![json!(terminating)]);
        let build = Controller::of::<Widget>(&cx).finalizer("served.reknit.dev/w");
        build.reconciler(Idle).finalizing().build()
    };
    let set_served = async |is_served: bool| {
        let mut versions = json!(Widget::crd().spec.versions);
        versions[0]["served"] = json!(is_served);
        let patch = Patch::Merge(json!({"spec": {"versions": versions}}));
        let name = Widget::crd_name();
        definitions.patch(name, &PatchParams::default(), &patch).await.unwrap();
        let is_seen = async || widgets.get("w").await.is_ok() == is_served;
        eventually(format!("served: {is_served}"), TIMEOUT, is_seen).await;
    };

    set_served(false).await;
    let error = controller.once(&Key::of(&terminating)).await.unwrap_err();
    assert!(error.in_full().contains("404"), "{}", error.in_full());
    set_served(true).await;
    assert!(widgets.get("w").await.unwrap().metadata.finalizers.is_some());
    let _done = controller.once(&Key::of(&terminating)).await.unwrap();
    assert!(widgets.get_opt("w").await.unwrap().is_none());
}

/// A Kind of another vendor, whose definition gets a default for `mode` later.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "defaulted.reknit.dev", version = "v1", kind = "Modal", namespaced)]
struct ModalSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
}

kind!(Modal {});

/// A reconciler of Modals that has nothing to do.
struct Reader;

impl ReconcileKind for Reader {
    type Kind = Modal;
    async fn reconcile_kind(&self, _: &Modal, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

/// The API server sets the default when it reads the stored object, whose resourceVersion stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_default_that_a_definition_gets_reaches_the_cache_and_enqueues_the_keys_of_unchanged_objects() {
    let plane = ControlPlane::shared().await.unwrap();
    let (client, namespace) = (plane.client().unwrap(), plane.namespace("defaulted").await.unwrap());
    plane.install_crd(Modal::crd()).await.unwrap();
    let modals: Api<Modal> = Api::namespaced(client.clone(), &namespace);
    let stored =
        modals.create(&PostParams::default(), &Modal::new("m", ModalSpec { mode: None })).await.unwrap();
    let (cx, key) = (Context::new("test", client.clone()), Key::of(&stored));
    let build = Controller::selected::<Modal>(&cx, select().namespace(&namespace));
    let controller = build.reconciler(Reader).build();
    let informer: Informer<Modal> = cx.informer(select().namespace(&namespace));
    cx.informers().start();
    informer.synced().await;
    let label = Patch::Merge(json!({"metadata": {"labels": {"written": "by-a-pass"}}}));
    let write = async {
        let modals: Api<Modal> = Api::namespaced(cx.client(), &namespace);
        modals.patch("m", &PatchParams::default(), &label).await.unwrap()
    };
    let pass = CurrentPass::begin(&"modals".into(), &key.clone().into(), false);
    let written = pass.scope(write).await;
    take_queued_with_causes(&controller);

    let mut versions = json!(Modal::crd().spec.versions);
    let mode = "/0/schema/openAPIV3Schema/properties/spec/properties/mode";
    versions.pointer_mut(mode).unwrap()["default"] = json!("fast");
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    let patch = Patch::Merge(json!({"spec": {"versions": versions}}));
    definitions.patch(Modal::crd_name(), &PatchParams::default(), &patch).await.unwrap();
    let queued = eventually("the key of the object to be enqueued", TIMEOUT, async || {
        Some(take_queued_with_causes(&controller)).filter(|queued| !queued.is_empty())
    })
    .await;
    let cause = "the object listed again with other content of the same resourceVersion (spec)";
    assert_eq!(queued, [(key.clone(), cause.to_owned())]);
    let cached = informer.get(&key).unwrap();
    assert_eq!(
        (cached.spec.mode.as_deref(), &cached.metadata.resource_version),
        (Some("fast"), &written.metadata.resource_version)
    );
}
