//! Informers that references open and close, on a real API server.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_apis::KReference;
use reknit_injection::{Context, Informer};
use reknit_reconciler::{Controller, Key, Kinds, Outcome, ReconcileKind, Result, TrackedAny};
use reknit_testing::{ControlPlane, ControllerExt, eventually};

use crate::{Fixture, TIMEOUT};

/// Reads a PodTemplate by reference while the flag is set.
struct ReferenceReader {
    anything: TrackedAny,
    has_reference: Arc<Mutex<bool>>,
}

impl ReconcileKind for ReferenceReader {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let reference = KReference {
            api_version: "v1".into(),
            kind: "PodTemplate".into(),
            name: "t".into(),
            ..KReference::default()
        };
        if *self.has_reference.lock().unwrap() {
            self.anything.get(map, &reference).await?;
        }
        Ok(Outcome::done())
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

#[tokio::test(flavor = "multi_thread")]
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

    let _ = controller.once(&key).await.unwrap();
    eventually("the watch", TIMEOUT, async || open_watches(&fixture).await == 1).await;
    // With the watch open, a pass reads the object from it.
    let _ = controller.once(&key).await.unwrap();
    *has_reference.lock().unwrap() = false;
    let _ = controller.once(&key).await.unwrap();
    eventually("the end of the watch", TIMEOUT, async || open_watches(&fixture).await == 0).await;
}
