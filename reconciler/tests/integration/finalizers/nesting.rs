//! Objects whose status is nested deeper than serde_json decodes.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Resource,
    api::{DynamicObject, Patch, PatchParams},
};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Key, Outcome, Owned, ReconcileKind, Result};
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
