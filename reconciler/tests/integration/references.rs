//! Informers that references open and close, on a real API server.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_apis::KReference;
use reknit_injection::{Context, Informer};
use reknit_reconciler::{Controller, Key, Outcome, ReconcileKind, Result, TrackedAny};
use reknit_testing::{ControlPlane, ControllerExt, eventually};

use crate::{Place, SOON};

/// Reads a PodTemplate while a flag is set.
struct Reading {
    anything: TrackedAny,
    refers: Arc<Mutex<bool>>,
}

impl ReconcileKind for Reading {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let reference = KReference {
            api_version: "v1".into(),
            kind: "PodTemplate".into(),
            name: "t".into(),
            ..KReference::default()
        };
        if *self.refers.lock().unwrap() {
            self.anything.get(map, &reference).await?;
        }
        Ok(Outcome::done())
    }
}

/// The watches of PodTemplates that the API server serves.
async fn watches(place: &Place) -> usize {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let metrics = place.client.request_text(request).await.unwrap();
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
    let place =
        Place { client: plane.client().unwrap(), namespace: plane.namespace("references").await.unwrap() };
    place.create("observer", &[]).await;
    let refers = Arc::new(Mutex::new(true));
    let (controller, maps, informers) = {
        let cx = Context::new("test", place.client.clone());
        let mut build = Controller::of::<ConfigMap>(&cx);
        let anything = build.track_any();
        let controller = build.reconciler(Reading { anything, refers: refers.clone() }).build();
        (controller, cx.get::<Informer<ConfigMap>>(), cx.informers())
    };
    informers.start();
    let key = Key::new(place.namespace.as_str(), "observer");
    eventually("the observer in the cache", SOON, async || maps.contains(&key)).await;
    assert_eq!(watches(&place).await, 0);

    let _ = controller.once(&key).await.unwrap();
    eventually("the watch", SOON, async || watches(&place).await == 1).await;
    let _ = controller.once(&key).await.unwrap();
    *refers.lock().unwrap() = false;
    let _ = controller.once(&key).await.unwrap();
    eventually("the end of the watch", SOON, async || watches(&place).await == 0).await;
}
