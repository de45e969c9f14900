//! Deleted objects that are outside the controller's sight when they are deleted, on a real API server.

mod nesting;
mod other_writers;

use std::sync::{Arc, Mutex};

use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, CustomResource, CustomResourceExt,
    api::{DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use reknit_apis::kind;
use reknit_injection::{Context, Selection, select};
use reknit_reconciler::{
    Builder, Controller, Event, FinalizeKind, Key, ObserveDeletion, Outcome, ReconcileKind, Result,
};
use reknit_testing::{ControlPlane, Controllers, RunningControllers, eventually};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{FinalizerPatch, Fixture, TIMEOUT};

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "finalizers.reknit.dev", version = "v1", kind = "Bulb", namespaced, status = "BulbStatus")]
struct BulbSpec {
    color: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct BulbStatus {
    phase: Phase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    color: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
enum Phase {
    #[default]
    Pending,
    Ready,
}

kind!(Bulb { status: BulbStatus });

const FINALIZER: &str = "bulbs.finalizers.reknit.dev";
const CLASS: &str = "finalizers.reknit.dev/class";

/// Records its calls.
#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Vec<String>>>);

impl Recording {
    fn record(&self, role: &str, name: Option<&str>) -> Result<Outcome> {
        self.0.lock().unwrap().push(format!("{role} {}", name.unwrap_or_default()));
        Ok(Outcome::done())
    }

    /// The calls except reconciles.
    fn deletions(&self) -> Vec<String> {
        let calls = self.0.lock().unwrap().clone();
        calls.into_iter().filter(|call| !call.starts_with("reconciled")).collect()
    }
}

impl ReconcileKind for Recording {
    type Kind = Bulb;
    async fn reconcile_kind(&self, bulb: &Bulb, status: &mut BulbStatus) -> Result<Outcome> {
        *status = BulbStatus { phase: Phase::Ready, color: Some(bulb.spec.color.clone()) };
        self.record("reconciled", bulb.metadata.name.as_deref())
    }
}

impl FinalizeKind for Recording {
    async fn finalize_kind(&self, bulb: &Bulb, _: &mut BulbStatus) -> Result<Outcome> {
        self.record("finalized", bulb.metadata.name.as_deref())
            .map(|done| done.event(Event::normal("Finalized", "nothing is left")))
    }
}

impl ObserveDeletion for Recording {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        self.record("gone", Some(&key.name))
    }
}

/// A namespace with Bulbs, and the calls of the controllers in it.
struct Bulbs {
    fixture: Fixture,
    calls: Recording,
}

impl Bulbs {
    async fn new() -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        INSTALLED.get_or_init(install).await;
        Self { fixture: Fixture::new("bulbs").await, calls: Recording::default() }
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.fixture.client.clone(), &self.fixture.namespace, &Bulb::api_resource())
    }

    fn selected(&self) -> Selection {
        select().namespace(&self.fixture.namespace)
    }

    /// Starts a controller with all roles.
    fn start(
        &self,
        build: impl FnOnce(&Context, Selection) -> Builder<Bulb> + 'static,
    ) -> RunningControllers {
        let (calls, selection) = (self.calls.clone(), self.selected());
        let controllers = Controllers::new(self.fixture.client.clone()).controller(move |cx| {
            let roles = build(cx, selection).reconciler(calls).finalizing();
            Ok(roles.observing_deletion_as_leader().build())
        });
        controllers.start()
    }

    /// Creates a red Bulb with this metadata besides its name.
    async fn create(&self, name: &str, metadata: Value) {
        let mut bulb = json!({
            "apiVersion": "finalizers.reknit.dev/v1", "kind": "Bulb", "metadata": metadata, "spec": {"color": "red"},
        });
        bulb["metadata"]["name"] = json!(name);
        self.api().create(&PostParams::default(), &serde_json::from_value(bulb).unwrap()).await.unwrap();
    }

    async fn patch(&self, name: &str, patch: Value) {
        self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn delete(&self, name: &str) {
        self.api().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the Bulb carries the finalizer and has a status.
    async fn reconciled(&self, name: &str) {
        eventually("the first pass", TIMEOUT, async || {
            let bulb = self.api().get(name).await.unwrap();
            let has_finalizer = bulb.metadata.finalizers == Some(vec![FINALIZER.into()]);
            has_finalizer && bulb.data["status"]["phase"] == "Ready"
        })
        .await;
    }

    /// Waits until the Bulb is gone and its deletion is observed. Asserts that it was finalized once before.
    async fn finalized_once(&self, name: &str) {
        let expected = [format!("finalized {name}"), format!("gone {name}")];
        eventually("the deletion", TIMEOUT, async || {
            let calls = self.calls.deletions();
            if calls == expected { Ok(()) } else { Err(format!("{calls:?}")) }
        })
        .await;
        assert!(self.api().get_opt(name).await.unwrap().is_none());
    }
}

/// Installs the Kind. The API server can select Bulbs by their color, and accepts any status and more fields of the spec.
async fn install() {
    let mut crd = serde_json::to_value(Bulb::crd()).unwrap();
    let version = &mut crd["spec"]["versions"][0];
    version["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    version["schema"]["openAPIV3Schema"]["properties"]["status"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"] =
        json!(true);
    let plane = ControlPlane::shared().await.unwrap();
    plane.install_crd(serde_json::from_value(crd).unwrap()).await.unwrap();
}

fn labelled(cx: &Context, selection: Selection) -> Builder<Bulb> {
    Controller::selected(cx, selection.label("lit", "yes"))
}

fn red(cx: &Context, selection: Selection) -> Builder<Bulb> {
    Controller::selected(cx, selection.field("spec.color", "red"))
}

fn of_class(cx: &Context, selection: Selection) -> Builder<Bulb> {
    Controller::selected(cx, selection).class(CLASS, "ours")
}

/// Constructs a controller, and how an object leaves its selection or class.
type Leaving = (fn(&Context, Selection) -> Builder<Bulb>, Value);

fn all_ways_to_leave() -> [Leaving; 4] {
    [
        (labelled, json!({"metadata": {"labels": null}})),
        (red, json!({"spec": {"color": "green"}})),
        (of_class, json!({"metadata": {"annotations": {CLASS: "another's"}}})),
        (of_class, json!({"metadata": {"annotations": null}})),
    ]
}

fn metadata() -> Value {
    json!({"labels": {"lit": "yes"}, "annotations": {CLASS: "ours"}})
}

#[tokio::test]
async fn an_object_that_left_the_selection_or_the_class_is_finalized_when_it_is_deleted() {
    for (build, leaves) in all_ways_to_leave() {
        let bulbs = Bulbs::new().await;
        bulbs.create("a", metadata()).await;
        let running = bulbs.start(build);
        bulbs.reconciled("a").await;
        bulbs.patch("a", leaves).await;
        // A pass of a later object ends after the pass of the change.
        bulbs.create("later", metadata()).await;
        bulbs.reconciled("later").await;
        assert_eq!(bulbs.calls.deletions(), [""; 0], "leaving is no deletion");
        bulbs.delete("a").await;
        bulbs.finalized_once("a").await;
        running.stop().await;
    }
}

#[tokio::test]
async fn an_object_that_left_while_no_controller_ran_is_finalized() {
    for is_deleted_before_the_start in [true, false] {
        for (build, leaves) in all_ways_to_leave() {
            let bulbs = Bulbs::new().await;
            bulbs.create("a", metadata()).await;
            let running = bulbs.start(build);
            bulbs.reconciled("a").await;
            running.stop().await;
            bulbs.patch("a", leaves).await;
            if is_deleted_before_the_start {
                bulbs.delete("a").await;
            }
            let running = bulbs.start(build);
            running.synced(TIMEOUT).await;
            if !is_deleted_before_the_start {
                assert_eq!(bulbs.calls.deletions(), [""; 0]);
                bulbs.delete("a").await;
            }
            bulbs.finalized_once("a").await;
            running.stop().await;
        }
    }
}

#[tokio::test]
async fn an_object_that_returns_to_the_selection_is_reconciled_again() {
    let bulbs = Bulbs::new().await;
    bulbs.create("a", metadata()).await;
    let running = bulbs.start(labelled);
    bulbs.reconciled("a").await;
    bulbs.patch("a", json!({"metadata": {"labels": null}})).await;
    bulbs.patch("a", json!({"spec": {"color": "blue"}})).await;
    bulbs.patch("a", json!({"metadata": {"labels": {"lit": "yes"}}})).await;
    eventually("the new status", TIMEOUT, async || {
        bulbs.api().get("a").await.unwrap().data["status"]["color"] == "blue"
    })
    .await;
    bulbs.delete("a").await;
    bulbs.finalized_once("a").await;
    running.stop().await;
}

#[tokio::test]
async fn a_status_that_cannot_be_decoded_is_overwritten() {
    let bulbs = Bulbs::new().await;
    bulbs.create("a", metadata()).await;
    let running = bulbs.start(labelled);
    bulbs.reconciled("a").await;
    let newer = json!({"status": {"phase": "Migrating", "color": {"rgb": 1}, "steps": [1]}});
    bulbs.api().patch_status("a", &PatchParams::default(), &Patch::Merge(newer)).await.unwrap();
    eventually("the status of this version", TIMEOUT, async || {
        let status = bulbs.api().get("a").await.unwrap().data["status"].clone();
        if status == json!({"phase": "Ready", "color": "red"}) { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    running.stop().await;
    assert!(bulbs.calls.0.lock().unwrap().len() <= 3, "{:?}", bulbs.calls.0);
    bulbs.delete("a").await;
    let newer = json!({"status": {"phase": "Migrating"}});
    bulbs.api().patch_status("a", &PatchParams::default(), &Patch::Merge(newer)).await.unwrap();
    let running = bulbs.start(labelled);
    bulbs.finalized_once("a").await;
    running.stop().await;
}

/// Sets a status that is too large for etcd when it finalizes.
struct Verbose;

impl ReconcileKind for Verbose {
    type Kind = Bulb;
    async fn reconcile_kind(&self, _: &Bulb, _: &mut BulbStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Verbose {
    async fn finalize_kind(&self, _: &Bulb, status: &mut BulbStatus) -> Result<Outcome> {
        status.color = Some("x".repeat(2_000_000));
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_status_that_is_too_large_to_be_stored_does_not_keep_the_finalizer() {
    let bulbs = Bulbs::new().await;
    bulbs.create("a", json!({"finalizers": [FINALIZER, "other.io/x"]})).await;
    bulbs.delete("a").await;
    let selection = bulbs.selected();
    let controllers = Controllers::new(bulbs.fixture.client.clone()).controller(move |cx| {
        Ok(Controller::selected::<Bulb>(cx, selection).reconciler(Verbose).finalizing().build())
    });
    let running = controllers.start();
    eventually("the removal of the finalizer", TIMEOUT, async || {
        bulbs.api().get("a").await.unwrap().metadata.finalizers == Some(vec!["other.io/x".into()])
    })
    .await;
    running.stop().await;
    bulbs.patch("a", json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn an_object_with_an_undecodable_status_gets_its_finalizer() {
    let bulbs = Bulbs::new().await;
    bulbs.create("a", metadata()).await;
    let newer = json!({"status": {"phase": "Migrating"}});
    bulbs.api().patch_status("a", &PatchParams::default(), &Patch::Merge(newer)).await.unwrap();
    let running = bulbs.start(labelled);
    bulbs.reconciled("a").await;
    bulbs.delete("a").await;
    bulbs.finalized_once("a").await;
    running.stop().await;
}

/// Up to Kubernetes 1.36 the API server refuses every write to such an object, with a 404 about the namespace.
#[tokio::test]
async fn an_object_whose_namespace_was_removed_by_force_is_finalized_once_the_namespace_exists_again() {
    let fixture = Fixture::new("forced").await;
    fixture.create("a", &[crate::FINALIZER, "other.io/x"]).await;
    let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
    namespaces.delete(&fixture.namespace, &DeleteParams::default()).await.unwrap();
    let mut namespace = namespaces.get(&fixture.namespace).await.unwrap();
    namespace.spec.as_mut().unwrap().finalizers = None;
    let finalize = Request::put(format!("/api/v1/namespaces/{}/finalize", fixture.namespace));
    let finalize = finalize.body(serde_json::to_vec(&namespace).unwrap()).unwrap();
    fixture.client.request::<Value>(finalize).await.unwrap();
    fixture.maps().delete("a", &DeleteParams::default()).await.unwrap();
    let version = fixture.client.apiserver_version().await.unwrap();
    let refuses_writes = version.minor.trim_end_matches('+').parse::<u32>().unwrap() < 37;
    if refuses_writes {
        eventually("the refusal of writes", TIMEOUT, async || {
            let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
            fixture.maps().patch("a", &PatchParams::default(), &label).await.is_err()
        })
        .await;
    }
    let deleted = fixture.maps().get("a").await.unwrap();
    let pass = async || fixture.pass(&deleted, FinalizerPatch::Merge).await;
    if refuses_writes {
        let error = pass().await.unwrap_err();
        assert!(error.in_full().contains("namespaces") && !error.is_permanent(), "{}", error.in_full());
        assert_eq!(fixture.finalizers("a").await.unwrap(), [crate::FINALIZER, "other.io/x"]);
    }

    let metadata = ObjectMeta { name: Some(fixture.namespace.clone()), ..ObjectMeta::default() };
    namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await.unwrap();
    let _ = eventually("the pass in the new namespace", TIMEOUT, pass).await;
    assert_eq!(fixture.finalizers("a").await.unwrap(), ["other.io/x"]);
    fixture.merge("a", json!({"metadata": {"finalizers": null}})).await;
}
