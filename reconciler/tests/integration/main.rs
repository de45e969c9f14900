//! Controllers and leader election on a real API server.
#![cfg(test)]

mod children;
mod leader;
mod references;

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace},
    events::v1::Event as Stored,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Event, FinalizeKind, Key, Outcome, ReconcileKind, Recorder, Result};
use reknit_testing::{ControlPlane, ControllerExt, eventually};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(10);
const FINALIZER: &str = "demo.reknit.dev/map";

/// Does nothing in both roles.
struct Idle;

impl ReconcileKind for Idle {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Idle {
    async fn finalize_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done().event(Event::normal("Finalized", "nothing is left")))
    }
}

struct Place {
    client: Client,
    namespace: String,
}

impl Place {
    async fn new(prefix: &str) -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        Self { client: plane.client().unwrap(), namespace: plane.namespace(prefix).await.unwrap() }
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create(&self, name: &str, finalizers: &[&str]) -> ConfigMap {
        let map = json!({"metadata": {"name": name, "finalizers": finalizers}});
        self.maps().create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap()
    }

    async fn merge(&self, name: &str, patch: Value) -> ConfigMap {
        self.maps().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    async fn finalizers(&self, name: &str) -> Option<Vec<String>> {
        let map = self.maps().get_opt(name).await.unwrap()?;
        Some(map.metadata.finalizers.unwrap_or_default())
    }

    /// Runs a pass of a finalizing controller whose cache holds this object.
    async fn pass(&self, held: &ConfigMap, applies: bool) -> Result<Outcome> {
        let made = {
            let held = serde_json::to_value(held).unwrap();
            let cx = Context::preloaded("test", self.client.clone(), vec![held]);
            let build = Controller::of::<ConfigMap>(&cx).reconciler(Idle).finalizing().finalizer(FINALIZER);
            if applies { build.server_side_apply("reknit-test").build() } else { build.build() }
        };
        made.once(&Key::of(held)).await
    }

    fn recorder(&self) -> Recorder {
        Controller::of::<ConfigMap>(&self.context()).recorder()
    }

    fn context(&self) -> Context {
        Context::preloaded("test", self.client.clone(), vec![])
    }

    async fn events_about(&self, namespace: &str, uid: &str) -> Vec<Stored> {
        let events: Api<Stored> = Api::namespaced(self.client.clone(), namespace);
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let about =
            |event: &Stored| event.regarding.as_ref().is_some_and(|about| about.uid.as_deref() == Some(uid));
        all.into_iter().filter(about).collect()
    }
}

#[tokio::test]
async fn events_are_stored_and_repeated_ones_are_counted() {
    let place = Place::new("events").await;
    let map = place.create("about", &[]).await;
    let recorder = place.recorder();
    for _ in 0..3 {
        recorder.record(&map, Event::warning("Again", "and again"));
    }
    recorder.record(&map, Event::normal("Long", "ä".repeat(2000)));
    recorder.flush().await;
    let mut events = place.events_about(&place.namespace, &map.uid().unwrap()).await;
    events.sort_by_key(|event| event.reason.clone());
    let [again, long] = &events[..] else { panic!("not two events: {events:?}") };
    assert_eq!(again.series.as_ref().unwrap().count, 3);
    assert_eq!(again.reporting_controller.as_deref(), Some("configmap-controller"));
    assert_eq!(again.type_.as_deref(), Some("Warning"));
    assert_eq!(long.note.as_ref().unwrap().len(), 1024);
}

#[tokio::test]
async fn events_of_a_controller_with_a_long_name_are_stored() {
    let place = Place::new("events").await;
    let map = place.create("about", &[]).await;
    let recorder = Controller::named(&format!("{}.of-many", "long".repeat(15)), &place.context()).recorder();
    recorder.record(&map, Event::normal("Seen", "it is there"));
    recorder.flush().await;
    let events = place.events_about(&place.namespace, &map.uid().unwrap()).await;
    let [seen] = &events[..] else { panic!("not one event: {events:?}") };
    let reporter = format!("{}.of", "long".repeat(15));
    assert_eq!(seen.reporting_controller, Some(reporter));
}

#[tokio::test]
async fn events_about_cluster_scoped_objects_are_stored_in_the_namespace_default() {
    let place = Place::new("cluster-events").await;
    let namespaces: Api<Namespace> = Api::all(place.client.clone());
    let namespace = namespaces.get(&place.namespace).await.unwrap();
    let recorder = place.recorder();
    recorder.record(&namespace, Event::normal("Seen", "it is there"));
    recorder.flush().await;
    assert_eq!(place.events_about("default", &namespace.uid().unwrap()).await.len(), 1);
}

#[tokio::test]
async fn a_finalizer_is_added_and_removed_beside_others() {
    for applies in [false, true] {
        let place = Place::new("finalizers").await;
        let fresh = place.create("a", &["other.io/x"]).await;
        place.merge("a", json!({"data": {"changed": "meanwhile"}})).await;
        let stale = place.pass(&fresh, applies).await;
        assert_eq!(stale.is_ok(), applies, "only a merge patch conflicts");
        let now = place.maps().get("a").await.unwrap();
        let _ = place.pass(&now, applies).await.unwrap();
        let mut both = place.finalizers("a").await.unwrap();
        both.sort();
        assert_eq!(both, [FINALIZER, "other.io/x"]);
        place.maps().delete("a", &DeleteParams::default()).await.unwrap();
        let dying = place.maps().get("a").await.unwrap();
        let _ = place.pass(&dying, applies).await.unwrap();
        assert_eq!(place.finalizers("a").await.unwrap(), ["other.io/x"]);
        place.merge("a", json!({"metadata": {"finalizers": null}})).await;
        eventually("gone", SOON, async || place.finalizers("a").await.is_none()).await;
    }
}

#[tokio::test]
async fn a_finalizer_that_the_api_server_refuses_is_refused_before_the_start() {
    let place = Place::new("names").await;
    for name in [
        FINALIZER,
        "unqualified",
        "map.demo.reknit.dev",
        "Demo.reknit.dev/map",
        "a/b/c",
        "/map",
        "x.dev/-map",
    ] {
        let object = json!({"metadata": {"name": "a", "finalizers": [name]}});
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let taken = place.maps().create(&dry, &serde_json::from_value(object).unwrap()).await.is_ok();
        let build = Controller::of::<ConfigMap>(&place.context()).reconciler(Idle).finalizing();
        assert_eq!(build.finalizer(name).build().check().is_ok(), taken, "{name}");
        assert_eq!(taken, name == FINALIZER);
    }
}

#[tokio::test]
async fn a_finalizer_is_kept_if_the_object_changed_since_it_was_finalized() {
    for applies in [false, true] {
        let place = Place::new("finalizers").await;
        place.create("a", &[FINALIZER]).await;
        place.maps().delete("a", &DeleteParams::default()).await.unwrap();
        let dying = place.maps().get("a").await.unwrap();
        let changed = place.merge("a", json!({"data": {"changed": "meanwhile"}})).await;
        assert!(place.pass(&dying, applies).await.unwrap_err().is_conflict(), "applied: {applies}");
        assert_eq!(place.finalizers("a").await.unwrap(), [FINALIZER]);
        let _ = place.pass(&changed, applies).await.unwrap();
        eventually("gone", SOON, async || place.finalizers("a").await.is_none()).await;
    }
}

#[tokio::test]
async fn a_merged_finalizer_is_removed_by_server_side_apply() {
    let place = Place::new("switched").await;
    let fresh = place.create("a", &[]).await;
    let _ = place.pass(&fresh, false).await.unwrap();
    place.maps().delete("a", &DeleteParams::default()).await.unwrap();
    let dying = place.maps().get("a").await.unwrap();
    let _ = place.pass(&dying, true).await.unwrap();
    eventually("gone", SOON, async || place.finalizers("a").await.is_none()).await;
}

#[tokio::test]
async fn a_deleted_object_is_not_created_again_and_finalizing_it_succeeds() {
    for applies in [false, true] {
        let place = Place::new("gone").await;
        let fresh = place.create("a", &[]).await;
        place.maps().delete("a", &DeleteParams::default()).await.unwrap();
        let outcome = place.pass(&fresh, applies).await.unwrap();
        assert_eq!(outcome, Outcome::skip(), "there is no object to add a finalizer to");
        assert_eq!(place.finalizers("a").await, None, "applied: {applies}");
        let mut dying = fresh.clone();
        dying.metadata.finalizers = Some(vec![FINALIZER.into()]);
        dying.metadata.deletion_timestamp = dying.metadata.creation_timestamp.clone();
        assert_eq!(place.pass(&dying, applies).await.unwrap().recorded().unwrap().reason, "Finalized");
        let another = place.create("a", &[FINALIZER]).await;
        let _ = place.pass(&dying, applies).await.unwrap();
        assert_eq!(
            place.finalizers("a").await.unwrap(),
            [FINALIZER],
            "another object of its name is not changed"
        );
        place.merge("a", json!({"metadata": {"finalizers": null, "uid": another.uid()}})).await;
    }
}
