//! Controllers on a real API server.
#![cfg(test)]

mod autoscalers;
mod causes;
mod changing_kinds;
mod children;
mod children_any;
mod conditions;
mod create_or_update;
mod deletion;
mod false_alarms;
mod fights;
mod finalizers;
mod fractions;
mod guards;
mod handover;
mod late_writes;
#[path = "../../../tests/support/logs.rs"]
mod logs;
mod namespaces;
mod references;
mod removed_versions;
mod resync;
mod schemas;
mod status;
mod storms;
mod tenants;

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace},
    events::v1::Event as StoredEvent,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use prometheus::Registry;
use reknit_injection::{Context, Shutdown};
use reknit_leadership::Leadership;
use reknit_reconciler::{
    Controller, Event, FinalizeKind, Key, Outcome, ReconcileKind, Recorder, Result, Run,
};
use reknit_testing::{ControlPlane, ControllerExt, eventually};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const TIMEOUT: Duration = Duration::from_secs(60);
const FINALIZER: &str = "demo.reknit.dev/map";

/// A reconciler that does nothing but record an event when it finalizes.
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

/// The type of the patch by which a controller writes its finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinalizerPatch {
    Merge,
    Apply,
}

/// Runs a controller until the future is dropped.
async fn run(controller: Controller, leadership: Leadership) {
    let run = Run { leadership, stop: Shutdown::never(), drain: Duration::ZERO, workers: None };
    controller.run(run).await;
}

/// Shows the registry of the constructed controller to the test.
fn measured(
    constructor: impl FnOnce(&Context) -> Result<Controller> + 'static,
) -> (impl FnOnce(&Context) -> Result<Controller> + 'static, Arc<OnceLock<Registry>>) {
    let shown = Arc::<OnceLock<Registry>>::default();
    let registry = shown.clone();
    let measured = move |cx: &Context| {
        shown.get_or_init(|| cx.metrics().clone());
        constructor(cx)
    };
    (measured, registry)
}

/// The value of the counter with exactly these labels. Zero if there is none.
fn count<const N: usize>(metrics: &Registry, name: &str, labels: [(&str, &str); N]) -> f64 {
    let (families, expected) = (metrics.gather(), BTreeSet::from(labels));
    let family = families.iter().find(|family| family.name() == name);
    let metrics = family.map(|family| family.get_metric()).unwrap_or_default();
    let has_labels = |metric: &prometheus::proto::Metric| {
        let labels = metric.get_label().iter();
        labels.map(|label| (label.name(), label.value())).collect::<BTreeSet<_>>() == expected
    };
    metrics.iter().find(|metric| has_labels(metric)).map_or(0.0, |metric| metric.get_counter().get_value())
}

/// A new namespace on a real API server.
struct Fixture {
    client: Client,
    namespace: String,
}

impl Fixture {
    async fn new(prefix: &str) -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        Self::on(plane, prefix).await
    }

    /// Creates a namespace on an API server with a node and Kubernetes' own controllers.
    async fn with_nodes(prefix: &str) -> Self {
        static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
        let plane = PLANE.get_or_try_init(ControlPlane::start).await.unwrap();
        plane.nodes(1).await.unwrap();
        Self::on(plane, prefix).await
    }

    async fn on(plane: &ControlPlane, prefix: &str) -> Self {
        Self { client: plane.client().unwrap(), namespace: plane.namespace(prefix).await.unwrap() }
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn deployments(&self) -> Api<Deployment> {
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

    /// Runs a pass of a finalizing controller whose cache has this object.
    async fn pass(&self, cached: &ConfigMap, patch_type: FinalizerPatch) -> Result<Outcome> {
        let controller = {
            let cached = serde_json::to_value(cached).unwrap();
            let cx = Context::preloaded("test", self.client.clone(), vec![cached]);
            let build = Controller::of::<ConfigMap>(&cx).finalizer(FINALIZER);
            let build = match patch_type {
                FinalizerPatch::Merge => build,
                FinalizerPatch::Apply => build.apply_finalizer_as("reknit-test"),
            };
            build.reconciler(Idle).finalizing().build()
        };
        controller.once(&Key::of(cached)).await
    }

    fn recorder(&self) -> Recorder {
        Controller::of::<ConfigMap>(&self.context()).recorder()
    }

    fn context(&self) -> Context {
        Context::preloaded("test", self.client.clone(), vec![])
    }

    async fn events_about(&self, namespace: &str, uid: &str) -> Vec<StoredEvent> {
        let events: Api<StoredEvent> = Api::namespaced(self.client.clone(), namespace);
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let is_about = |event: &StoredEvent| {
            event.regarding.as_ref().is_some_and(|object| object.uid.as_deref() == Some(uid))
        };
        events.into_iter().filter(is_about).collect()
    }
}

#[tokio::test]
async fn events_are_stored_and_repeated_ones_are_counted() {
    let fixture = Fixture::new("events").await;
    let map = fixture.create("about", &[]).await;
    let recorder = fixture.recorder();
    for _ in 0..3 {
        recorder.record(&map, Event::warning("Again", "and again"));
    }
    recorder.record(&map, Event::normal("Long", "ä".repeat(2000)));
    recorder.flush().await;
    let mut events = fixture.events_about(&fixture.namespace, &map.uid().unwrap()).await;
    events.sort_by_key(|event| event.reason.clone());
    let [again, long] = &events[..] else { panic!("not two events: {events:?}") };
    assert_eq!(again.series.as_ref().unwrap().count, 3);
    assert_eq!(again.reporting_controller.as_deref(), Some("configmap-controller"));
    assert_eq!(again.type_.as_deref(), Some("Warning"));
    assert_eq!(long.note.as_ref().unwrap().len(), 1024);
}

#[tokio::test]
async fn events_of_a_controller_with_a_long_name_are_stored() {
    let fixture = Fixture::new("events").await;
    let map = fixture.create("about", &[]).await;
    let recorder =
        Controller::named(&format!("{}.of-many", "long".repeat(15)), &fixture.context()).recorder();
    recorder.record(&map, Event::normal("Seen", "it is there"));
    recorder.flush().await;
    let events = fixture.events_about(&fixture.namespace, &map.uid().unwrap()).await;
    let [seen] = &events[..] else { panic!("not one event: {events:?}") };
    let reporter = format!("{}.of", "long".repeat(15));
    assert_eq!(seen.reporting_controller, Some(reporter));
}

#[tokio::test]
async fn events_of_a_controller_with_an_odd_name_are_stored() {
    let fixture = Fixture::new("events").await;
    let map = fixture.create("about", &[]).await;
    for (name, reporter) in
        [("Über uns / 日本", "ber-uns------controller"), ("a.example.com/b", "a.example.com/b-controller")]
    {
        let recorder = Controller::named(name, &fixture.context()).recorder();
        recorder.record(&map, Event::normal(&format!("{name} {}", "ä".repeat(100)), ""));
        recorder.flush().await;
        let events = fixture.events_about(&fixture.namespace, &map.uid().unwrap()).await;
        let reporters: Vec<_> =
            events.iter().filter_map(|event| event.reporting_controller.as_deref()).collect();
        assert!(reporters.contains(&reporter), "{reporters:?}");
    }
}

#[tokio::test]
async fn events_about_cluster_scoped_objects_are_stored_in_the_namespace_default() {
    let fixture = Fixture::new("cluster-events").await;
    let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
    let namespace = namespaces.get(&fixture.namespace).await.unwrap();
    let recorder = fixture.recorder();
    recorder.record(&namespace, Event::normal("Seen", "it is there"));
    recorder.flush().await;
    assert_eq!(fixture.events_about("default", &namespace.uid().unwrap()).await.len(), 1);
}

#[tokio::test]
async fn adding_and_removing_a_finalizer_keeps_the_finalizers_of_others() {
    for patch_type in [FinalizerPatch::Merge, FinalizerPatch::Apply] {
        let fixture = Fixture::new("finalizers").await;
        let created = fixture.create("a", &["other.io/x"]).await;
        fixture.merge("a", json!({"data": {"changed": "meanwhile"}})).await;
        let stale = fixture.pass(&created, patch_type).await;
        assert_eq!(
            stale.is_ok(),
            patch_type == FinalizerPatch::Apply,
            "only a merge patch has the resourceVersion as precondition"
        );
        let current = fixture.maps().get("a").await.unwrap();
        let _ = fixture.pass(&current, patch_type).await.unwrap();
        let mut finalizers = fixture.finalizers("a").await.unwrap();
        finalizers.sort();
        assert_eq!(finalizers, [FINALIZER, "other.io/x"]);
        fixture.maps().delete("a", &DeleteParams::default()).await.unwrap();
        let terminating = fixture.maps().get("a").await.unwrap();
        let _ = fixture.pass(&terminating, patch_type).await.unwrap();
        assert_eq!(fixture.finalizers("a").await.unwrap(), ["other.io/x"]);
        fixture.merge("a", json!({"metadata": {"finalizers": null}})).await;
        eventually("the deletion", TIMEOUT, async || fixture.finalizers("a").await.is_none()).await;
    }
}

#[tokio::test]
async fn a_finalizer_name_that_the_api_server_refuses_is_refused_before_the_start() {
    let fixture = Fixture::new("names").await;
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
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let is_accepted =
            fixture.maps().create(&dry_run, &serde_json::from_value(object).unwrap()).await.is_ok();
        let build = Controller::of::<ConfigMap>(&fixture.context()).finalizer(name);
        assert_eq!(build.reconciler(Idle).finalizing().build().check().is_ok(), is_accepted, "{name}");
        assert_eq!(is_accepted, name == FINALIZER);
    }
}

#[tokio::test]
async fn a_finalizer_is_kept_if_the_object_changed_since_it_was_finalized() {
    for patch_type in [FinalizerPatch::Merge, FinalizerPatch::Apply] {
        let fixture = Fixture::new("finalizers").await;
        fixture.create("a", &[FINALIZER]).await;
        fixture.maps().delete("a", &DeleteParams::default()).await.unwrap();
        let terminating = fixture.maps().get("a").await.unwrap();
        let changed = fixture.merge("a", json!({"data": {"changed": "meanwhile"}})).await;
        assert!(fixture.pass(&terminating, patch_type).await.unwrap_err().is_conflict(), "{patch_type:?}");
        assert_eq!(fixture.finalizers("a").await.unwrap(), [FINALIZER]);
        let _ = fixture.pass(&changed, patch_type).await.unwrap();
        eventually("the deletion", TIMEOUT, async || fixture.finalizers("a").await.is_none()).await;
    }
}

#[tokio::test]
async fn a_finalizer_is_not_placed_on_an_object_that_is_being_deleted() {
    for patch_type in [FinalizerPatch::Merge, FinalizerPatch::Apply] {
        let fixture = Fixture::new("finalizers").await;
        let created = fixture.create("a", &["other.io/x"]).await;
        fixture.maps().delete("a", &DeleteParams::default()).await.unwrap();
        assert_eq!(fixture.pass(&created, patch_type).await.unwrap(), Outcome::skip(), "{patch_type:?}");
        assert_eq!(fixture.finalizers("a").await.unwrap(), ["other.io/x"]);
        assert!(fixture.events_about(&fixture.namespace, &created.uid().unwrap()).await.is_empty());
        fixture.merge("a", json!({"metadata": {"finalizers": null}})).await;
    }
}

#[tokio::test]
async fn a_finalizer_added_by_a_merge_patch_is_removed_by_server_side_apply() {
    let fixture = Fixture::new("switched").await;
    let created = fixture.create("a", &[]).await;
    let _ = fixture.pass(&created, FinalizerPatch::Merge).await.unwrap();
    fixture.maps().delete("a", &DeleteParams::default()).await.unwrap();
    let terminating = fixture.maps().get("a").await.unwrap();
    let _ = fixture.pass(&terminating, FinalizerPatch::Apply).await.unwrap();
    eventually("the deletion", TIMEOUT, async || fixture.finalizers("a").await.is_none()).await;
}

#[tokio::test]
async fn a_deleted_object_is_not_created_again_and_finalizing_it_succeeds() {
    for patch_type in [FinalizerPatch::Merge, FinalizerPatch::Apply] {
        let fixture = Fixture::new("gone").await;
        let created = fixture.create("a", &[]).await;
        fixture.maps().delete("a", &DeleteParams::default()).await.unwrap();
        let outcome = fixture.pass(&created, patch_type).await.unwrap();
        assert_eq!(outcome, Outcome::skip(), "there is no object to add a finalizer to");
        assert_eq!(fixture.finalizers("a").await, None, "{patch_type:?}");
        let mut terminating = created.clone();
        terminating.metadata.finalizers = Some(vec![FINALIZER.into()]);
        terminating.metadata.deletion_timestamp = terminating.metadata.creation_timestamp.clone();
        assert_eq!(
            fixture.pass(&terminating, patch_type).await.unwrap().recorded_event().unwrap().reason,
            "Finalized"
        );
        let another = fixture.create("a", &[FINALIZER]).await;
        let _ = fixture.pass(&terminating, patch_type).await.unwrap();
        assert_eq!(
            fixture.finalizers("a").await.unwrap(),
            [FINALIZER],
            "the new object of the same name was changed"
        );
        fixture.merge("a", json!({"metadata": {"finalizers": null, "uid": another.uid()}})).await;
    }
}
