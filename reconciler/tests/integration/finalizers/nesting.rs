//! Objects whose status is nested deeper than serde_json decodes.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, CustomResourceExt, Resource, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use reknit_injection::{Context, internal::open_unsynced};
use reknit_reconciler::{
    Controller, Key, Kinds, NotApplied, Outcome, Owned, OwnedAny, OwnedOptions, ReconcileKind, Result,
    controller_reference,
};
use reknit_testing::{ControllerExt, Controllers, eventually};
use serde_json::{Value, json};

use super::{Bulb, BulbSpec, BulbStatus, Bulbs, Phase, labelled, metadata};
use crate::{TIMEOUT, logs};

impl Bulbs {
    /// Writes a status that is nested too deep. The client of the test cannot decode the answer.
    async fn write_deep_status(&self, name: &str, (params, patch): &(PatchParams, Patch<Value>)) {
        let answer = self.api().patch_status(name, params, patch).await;
        assert!(matches!(answer, Err(kube::Error::SerdeError(_))), "{answer:?}");
    }

    /// Adds a field to the spec that is nested too deep.
    async fn write_deep_spec(&self, client: Client, name: &str) {
        let bulbs: Api<DynamicObject> =
            Api::namespaced_with(client, &self.fixture.namespace, &Bulb::api_resource());
        let patch = Patch::Merge(json!({"spec": {"extra": deep()}}));
        let answer = bulbs.patch(name, &PatchParams::default(), &patch).await;
        assert!(matches!(answer, Err(kube::Error::SerdeError(_))), "{answer:?}");
    }

    /// The JSON of a Bulb, however deep it is nested.
    async fn stored(&self, name: &str) -> String {
        let bulbs = Bulb::url_path(&(), Some(&self.fixture.namespace));
        let request = http::Request::get(format!("{bulbs}/{name}")).body(Vec::new()).unwrap();
        self.fixture.client.request_text(request).await.unwrap()
    }

    /// The failed passes of Bulbs in this namespace, from the log.
    fn failed_passes(&self) -> Vec<String> {
        let lines = logs::lines_with(&self.fixture.namespace).into_iter();
        lines.filter(|line| line.contains("the pass failed")).collect()
    }
}

/// A value that is nested deeper than serde_json decodes.
fn deep() -> Value {
    (0..200).fold(json!(1), |inner, _| json!({ "inner": inner }))
}

/// Updates the status by a merge patch.
fn update(status: Value) -> (PatchParams, Patch<Value>) {
    (PatchParams::default(), Patch::Merge(json!({ "status": status })))
}

/// Updates and applies this status.
fn all_writes(status: &Value) -> [(PatchParams, Patch<Value>); 2] {
    let body = json!({"apiVersion": "finalizers.reknit.dev/v1", "kind": "Bulb", "status": status});
    let apply = (PatchParams::apply("other").force(), Patch::Apply(body));
    [update(status.clone()), apply]
}

#[tokio::test]
async fn a_status_that_is_nested_too_deep_is_overwritten_and_does_not_keep_the_finalizer() {
    let bulbs = Bulbs::new().await;
    bulbs.create("a", metadata()).await;
    let running = bulbs.start(labelled);
    bulbs.reconciled("a").await;
    bulbs.write_deep_status("a", &update(json!({"color": deep(), "steps": deep()}))).await;
    eventually("the status of this version", TIMEOUT, async || {
        let status = bulbs.api().get("a").await.map_err(|error| error.to_string())?.data["status"].clone();
        if status == json!({"phase": "Ready", "color": "red"}) { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    running.stop().await;
    bulbs.delete("a").await;
    bulbs.write_deep_status("a", &update(json!({ "color": deep() }))).await;
    let running = bulbs.start(labelled);
    bulbs.finalized_once("a").await;
    running.stop().await;
}

#[tokio::test]
async fn an_object_with_a_status_that_is_nested_too_deep_gets_its_finalizer() {
    logs::record();
    for write in all_writes(&json!({ "color": deep() })) {
        let bulbs = Bulbs::new().await;
        bulbs.create("a", metadata()).await;
        bulbs.write_deep_status("a", &write).await;
        let running = bulbs.start(labelled);
        eventually("the first pass", TIMEOUT, async || {
            bulbs.api().get("a").await.is_ok_and(|bulb| bulb.data["status"]["phase"] == "Ready")
        })
        .await;
        bulbs.delete("a").await;
        bulbs.finalized_once("a").await;
        running.stop().await;
        assert_eq!(bulbs.failed_passes(), [""; 0]);
    }
}

#[tokio::test]
async fn an_object_outside_the_selection_with_a_status_that_is_nested_too_deep_is_finalized() {
    logs::record();
    for write in all_writes(&json!({ "color": deep() })) {
        let bulbs = Bulbs::new().await;
        bulbs.create("a", metadata()).await;
        let running = bulbs.start(labelled);
        bulbs.reconciled("a").await;
        running.stop().await;
        bulbs.patch("a", json!({"metadata": {"labels": null}})).await;
        bulbs.delete("a").await;
        bulbs.write_deep_status("a", &write).await;
        let running = bulbs.start(labelled);
        bulbs.finalized_once("a").await;
        running.stop().await;
        assert_eq!(bulbs.failed_passes(), [""; 0]);
    }
}

#[tokio::test]
async fn an_unknown_part_of_a_status_is_kept_however_deep_it_is_nested() {
    let bulbs = Bulbs::new().await;
    bulbs.create("a", metadata()).await;
    bulbs.write_deep_status("a", &update(json!({"phase": "Pending", "steps": deep()}))).await;
    let running = bulbs.start(labelled);
    eventually("the first pass", TIMEOUT, async || bulbs.stored("a").await.contains(r#""phase":"Ready""#))
        .await;
    running.stop().await;
    assert!(bulbs.stored("a").await.contains(&format!(r#""steps":{}"#, deep())));
}

/// Another client nests its part of the status too deep during the first pass.
struct Overtaken {
    bulbs: Api<DynamicObject>,
    write: Mutex<Option<Value>>,
}

impl ReconcileKind for Overtaken {
    type Kind = Bulb;
    async fn reconcile_kind(&self, _: &Bulb, status: &mut BulbStatus) -> Result<Outcome> {
        let write = self.write.lock().unwrap().take();
        if let Some(write) = write {
            let (params, patch) = update(write);
            self.bulbs.patch_status("a", &params, &patch).await.unwrap_err();
        }
        status.phase = Phase::Ready;
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_status_is_written_after_a_conflict_with_one_that_is_nested_too_deep() {
    logs::record();
    for other in [json!({ "color": deep() }), json!({"phase": "Pending", "steps": deep()})] {
        let bulbs = Bulbs::new().await;
        bulbs.create("a", metadata()).await;
        let reconciler = Overtaken { bulbs: bulbs.api(), write: Mutex::new(Some(other)) };
        let selection = bulbs.selected();
        let controllers = Controllers::new(bulbs.fixture.client.clone()).controller(move |cx| {
            Ok(Controller::selected::<Bulb>(cx, selection).reconciler(reconciler).build())
        });
        let running = controllers.start();
        eventually("the status", TIMEOUT, async || bulbs.stored("a").await.contains(r#""phase":"Ready""#))
            .await;
        running.stop().await;
        assert_eq!(bulbs.failed_passes(), [""; 0]);
    }
}

/// Applies a Bulb of the color for every owner.
struct Lighter {
    bulbs: Owned<Bulb>,
    color: Arc<Mutex<&'static str>>,
}

impl ReconcileKind for Lighter {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, owner: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let color = self.color.lock().unwrap().to_string();
        self.bulbs.apply(owner, Bulb::new("a", BulbSpec { color })).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_child_is_applied_however_deep_its_status_is_nested() {
    let bulbs = Bulbs::new().await;
    let owner = bulbs.fixture.create("owner", &[]).await;
    let color = Arc::new(Mutex::new("red"));
    let controller = {
        let cx = Context::preloaded("test", bulbs.fixture.client.clone(), vec![json!(owner)]);
        let mut build = Controller::of::<ConfigMap>(&cx);
        let lighter = Lighter { bulbs: build.owns(), color: color.clone() };
        build.reconciler(lighter).build()
    };
    let key = Key::new(bulbs.fixture.namespace.as_str(), "owner");
    let _ = controller.once(&key).await.unwrap();
    bulbs.write_deep_status("a", &update(json!({"phase": "Pending", "steps": deep()}))).await;
    *color.lock().unwrap() = "blue";
    let _ = controller.once(&key).await.unwrap();
    assert!(bulbs.stored("a").await.contains(r#""color":"blue""#));
}

#[tokio::test]
async fn informers_hold_objects_whose_status_is_nested_too_deep_and_skip_only_one_with_such_a_spec() {
    let bulbs = Bulbs::new().await;
    for name in ["plain", "status", "spec"] {
        bulbs.create(name, metadata()).await;
    }
    bulbs.write_deep_status("status", &update(json!({"phase": "Pending", "steps": deep()}))).await;
    bulbs.write_deep_spec(bulbs.fixture.client.clone(), "spec").await;
    let cx = Context::new("test", bulbs.fixture.client.clone());
    let managed = cx.informer::<Bulb>(bulbs.selected().keeping_managed_fields());
    let dynamic = open_unsynced::<DynamicObject>(&cx.informers(), &Bulb::api_resource(), bulbs.selected());
    cx.informers().start();
    eventually("the lists", TIMEOUT, async || managed.keys().len() == 3 && dynamic.keys().len() == 3).await;
    let mut names: Vec<_> = dynamic.list().map(|bulb| bulb.name_any()).collect();
    names.sort();
    assert_eq!(names, ["plain", "status"]);
    let key = Key::new(bulbs.fixture.namespace.as_str(), "status");
    assert_eq!(dynamic.get(&key).unwrap().data["status"]["phase"], "Pending");
    assert!(!managed.get(&key).unwrap().managed_fields().is_empty());
}

/// Applies a Bulb of the color for every owner, as a child of a Kind that is known only at run time.
struct AnyLighter {
    children: OwnedAny,
    color: Arc<Mutex<&'static str>>,
}

impl ReconcileKind for AnyLighter {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, owner: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let bulbs = self.children.kind(owner, "finalizers.reknit.dev/v1", "Bulb").await?;
        let color = *self.color.lock().unwrap();
        bulbs
            .apply(
                owner,
                DynamicObject::new("a", &Bulb::api_resource()).data(json!({"spec": {"color": color}})),
            )
            .await?;
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_child_of_any_kind_is_applied_however_deep_its_status_is_nested() {
    logs::record();
    let bulbs = Bulbs::new().await;
    let color = Arc::new(Mutex::new("red"));
    let (selection, its_color) = (bulbs.selected(), color.clone());
    let controllers = Controllers::new(bulbs.fixture.client.clone()).controller(move |cx| {
        let mut build = Controller::selected::<ConfigMap>(cx, selection);
        let children = build.owns_any(Kinds::any(), OwnedOptions::default());
        Ok(build.reconciler(AnyLighter { children, color: its_color }).build())
    });
    let running = controllers.start();
    bulbs.fixture.create("owner", &[]).await;
    eventually("the child", TIMEOUT, async || bulbs.api().get_opt("a").await.unwrap().is_some()).await;
    bulbs.write_deep_status("a", &update(json!({"phase": "Pending", "steps": deep()}))).await;
    *color.lock().unwrap() = "blue";
    bulbs.fixture.merge("owner", json!({"data": {"color": "blue"}})).await;
    eventually("the color", TIMEOUT, async || bulbs.stored("a").await.contains(r#""color":"blue""#)).await;
    running.stop().await;
    assert_eq!(bulbs.failed_passes(), [""; 0]);
    assert!(bulbs.stored("a").await.contains(&format!(r#""steps":{}"#, deep())));
}

#[tokio::test]
async fn a_child_is_taken_over_without_a_change_of_the_managed_fields_of_others() {
    let bulbs = Bulbs::new().await;
    let owner = bulbs.fixture.create("owner", &[]).await;
    let go = PostParams { field_manager: Some("go".into()), ..PostParams::default() };
    let mut child = DynamicObject::new("a", &Bulb::api_resource()).data(json!({"spec": {"color": "red"}}));
    child.metadata.owner_references = Some(vec![controller_reference(&owner)]);
    bulbs.api().create(&go, &child).await.unwrap();
    bulbs.write_deep_status("a", &update(json!({"phase": "Pending", "steps": deep()}))).await;
    let levels = async || bulbs.stored("a").await.matches("f:inner").count();
    let levels_before = levels().await;
    assert!(levels_before >= 200, "{levels_before}");
    let cx = Context::preloaded("test", bulbs.fixture.client.clone(), vec![]);
    let children: Owned<Bulb> =
        Controller::of::<ConfigMap>(&cx).owns_with(OwnedOptions::default().upgrading_from(["go"]));
    children.apply(&owner, Bulb::new("a", BulbSpec { color: "blue".into() })).await.unwrap();
    assert_eq!(levels().await, levels_before);
    let stored = bulbs.stored("a").await;
    assert!(stored.contains(r#""color":"blue""#) && !stored.contains(r#""manager":"go""#), "{stored}");
}

#[tokio::test]
async fn an_update_of_a_child_keeps_unknown_fields_that_are_nested_too_deep() {
    let bulbs = Bulbs::new().await;
    let owner = bulbs.fixture.create("owner", &[]).await;
    let cx = Context::preloaded("test", bulbs.fixture.client.clone(), vec![]);
    let children: Owned<Bulb> = Controller::of::<ConfigMap>(&cx).owns();
    let child = || Bulb::new("a", BulbSpec { color: "red".into() });
    children.create_or_update(&owner, child(), |_| {}).await.unwrap();
    // By a client whose answers enter the cache.
    bulbs.write_deep_spec(cx.client(), "a").await;
    let label = |bulb: &mut Bulb| drop(bulb.labels_mut().insert("lit".into(), "yes".into()));
    children.create_or_update(&owner, child(), label).await.unwrap();
    let stored = bulbs.stored("a").await;
    assert!(stored.contains(r#""lit":"yes""#) && stored.contains(&format!(r#""extra":{}"#, deep())));
    let recolor = |bulb: &mut Bulb| bulb.spec.color = "blue".into();
    let refused = children.create_or_update(&owner, child(), recolor).await.unwrap_err();
    assert!(matches!(&refused, NotApplied::Refused { .. }), "{refused}");
    assert!(bulbs.stored("a").await.contains(r#""color":"red""#));
}
