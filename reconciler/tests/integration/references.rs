//! Informers that references open and close, on a real API server.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, PodTemplate};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use reknit_apis::KReference;
use reknit_injection::{Context, Informer, select};
use reknit_reconciler::{
    Controller, FinalizeKind, Key, Kinds, Outcome, OwnedAny, OwnedOptions, ReconcileKind, Result, TrackedAny,
    controller_reference,
};
use reknit_testing::{ControlPlane, ControllerExt, Controllers, eventually};
use serde_json::json;

use crate::{FINALIZER, Fixture, TIMEOUT};

/// Reads a PodTemplate by reference while the flag is set.
struct ReferenceReader {
    anything: TrackedAny,
    has_reference: Arc<Mutex<bool>>,
}

impl ReconcileKind for ReferenceReader {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        if *self.has_reference.lock().unwrap() {
            self.anything.get(map, &template()).await?;
        }
        Ok(Outcome::done())
    }
}

fn template() -> KReference {
    KReference {
        api_version: "v1".into(),
        kind: "PodTemplate".into(),
        name: "t".into(),
        ..KReference::default()
    }
}

/// Returns the number of watches of PodTemplates that the API server serves.
async fn open_watches(fixture: &Fixture) -> usize {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let metrics = fixture.client.request_text(request).await.unwrap();
    let is_watch = |line: &&str| {
        line.starts_with("apiserver_longrunning_requests{")
            && line.contains("resource=\"podtemplates\"")
            && line.contains("verb=\"WATCH\"")
    };
    let counts =
        metrics.lines().filter(is_watch).filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok());
    counts.sum()
}

#[tokio::test] // One thread: with more, the list may end before the pass asks for it.
async fn the_watch_that_a_reference_opened_ends_with_the_last_reference() {
    let plane = ControlPlane::start().await.unwrap();
    let fixture =
        Fixture { client: plane.client().unwrap(), namespace: plane.namespace("references").await.unwrap() };
    fixture.create("observer", &[]).await;
    let has_reference = Arc::new(Mutex::new(true));
    let (controller, maps, informers) = {
        let cx = Context::new("test", fixture.client.clone());
        let mut build = Controller::of::<ConfigMap>(&cx);
        let anything = build.track_any(Kinds::any());
        let controller =
            build.reconciler(ReferenceReader { anything, has_reference: has_reference.clone() }).build();
        (controller, cx.get::<Informer<ConfigMap>>(), cx.informers())
    };
    informers.start();
    let key = Key::new(fixture.namespace.as_str(), "observer");
    eventually("the observer in the cache", TIMEOUT, async || maps.contains(&key)).await;
    assert_eq!(open_watches(&fixture).await, 0);

    controller.take_queued();
    assert!(controller.once(&key).await.unwrap_err().is_waiting());
    eventually("the list enqueues the observer", TIMEOUT, async || controller.take_queued() == [key.clone()])
        .await;
    eventually("the watch", TIMEOUT, async || open_watches(&fixture).await == 1).await;
    // With the watch open, a pass reads the object from it.
    let _ = controller.once(&key).await.unwrap();
    *has_reference.lock().unwrap() = false;
    let _ = controller.once(&key).await.unwrap();
    eventually("the end of the watch", TIMEOUT, async || open_watches(&fixture).await == 0).await;
}

/// Reads and owns PodTemplates while it finalizes, and waits an hour.
struct WaitingFinalizer {
    anything: TrackedAny,
    templates: OwnedAny,
    calls: Arc<AtomicUsize>,
}

impl ReconcileKind for WaitingFinalizer {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl FinalizeKind for WaitingFinalizer {
    async fn finalize_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        assert!(self.anything.get(map, &template()).await?.is_some());
        let templates = self.templates.kind(map, "v1", "PodTemplate").await?;
        assert_eq!(templates.of(map).count(), 1);
        self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(Outcome::after(Duration::from_secs(3600)))
    }
}

#[tokio::test]
async fn a_pass_that_opens_informers_is_not_run_again_by_their_first_lists() {
    let fixture = Fixture::new("opening").await;
    let owner = fixture.create("owner", &[FINALIZER]).await;
    let templates: Api<PodTemplate> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let mut stored: PodTemplate = serde_json::from_value(json!({
        "metadata": {"name": "t"},
        "template": {"spec": {"containers": [{"name": "a", "image": "a"}]}},
    }))
    .unwrap();
    stored.metadata.owner_references = Some(vec![controller_reference(&owner)]);
    templates.create(&PostParams::default(), &stored).await.unwrap();
    fixture.maps().delete("owner", &DeleteParams::default()).await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, namespace) = (calls.clone(), fixture.namespace.clone());
    let running = Controllers::new(fixture.client.clone()).controller(move |cx| {
        let mut build =
            Controller::selected::<ConfigMap>(cx, select().namespace(&namespace)).finalizer(FINALIZER);
        let reconciler = WaitingFinalizer {
            anything: build.track_any(Kinds::any()),
            templates: build.owns_any(Kinds::any(), OwnedOptions::default()),
            calls: counted,
        };
        Ok(build.reconciler(reconciler).finalizing().build())
    });
    let running = running.start();
    eventually("the first call", TIMEOUT, async || calls.load(Ordering::SeqCst) > 0).await;
    // A change of an object that the pass has read is the only reason for another one.
    let change = json!({"metadata": {"labels": {"changed": "yes"}}});
    templates.patch("t", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(change)).await.unwrap();
    eventually("the second call", TIMEOUT, async || calls.load(Ordering::SeqCst) == 2).await;
    running.stop().await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    fixture.merge("owner", json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn a_reference_does_not_tell_whether_an_object_of_another_namespace_exists() {
    let fixture = Fixture::new("own").await;
    let other = Fixture::new("other").await;
    let observer = fixture.create("observer", &[]).await;
    other.create("exists", &[]).await;
    let (anything, across, informers) = {
        let cx = Context::new("test", fixture.client.clone());
        let mut build = Controller::of::<ConfigMap>(&cx);
        let across = build.track_any(Kinds::any()).across_namespaces();
        (build.track_any(Kinds::any()), across, cx.informers())
    };
    informers.start();
    let reference = |name: &str| KReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: Some(other.namespace.clone()),
        name: name.into(),
        ..KReference::default()
    };
    for name in ["exists", "missing"] {
        let error = anything.get(&observer, &reference(name)).await.unwrap_err();
        assert!(error.is_permanent() && error.to_string().contains("its own namespace"), "{error}");
    }
    eventually("the object, if the controller allows it", TIMEOUT, async || {
        matches!(across.get(&observer, &reference("exists")).await, Ok(Some(_)))
    })
    .await;
    let namespaces = KReference { kind: "Namespace".into(), namespace: None, ..reference(&other.namespace) };
    let error = anything.get(&observer, &namespaces).await.unwrap_err();
    assert!(error.is_permanent() && error.to_string().contains("is cluster-scoped"), "{error}");
}

#[tokio::test]
async fn a_reference_to_a_kind_that_is_only_created_fails_and_says_so() {
    let fixture = Fixture::new("unlisted").await;
    let observer = fixture.create("observer", &[]).await;
    let (anything, informers) = {
        let cx = Context::new("test", fixture.client.clone());
        let mut build = Controller::of::<ConfigMap>(&cx);
        (build.track_any(Kinds::any()).across_namespaces(), cx.informers())
    };
    informers.start();
    let review = KReference {
        api_version: "authentication.k8s.io/v1".into(),
        kind: "TokenReview".into(),
        name: "review".into(),
        ..KReference::default()
    };
    eventually("the error", TIMEOUT, async || {
        let error = anything.get(&observer, &review).await.unwrap_err().to_string();
        if error.contains("cannot be listed or watched") && error.contains("(405)") {
            Ok(())
        } else {
            Err(error)
        }
    })
    .await;
}
