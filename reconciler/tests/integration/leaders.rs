//! Deletions while the leader changes, on a real API server.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DeleteParams;
use reknit_injection::{Context, Informer, Shutdown, select};
use reknit_leadership::internal::{BucketWriter, elected};
use reknit_reconciler::{Controller, Key, ObserveDeletion, Outcome, ReconcileKind, Result, Run};
use reknit_testing::eventually;
use tokio::{task::JoinHandle, time::Instant};

use crate::{Fixture, TIMEOUT};

const TERM: Duration = Duration::from_secs(600);

/// Records the names of the objects whose deletion it observes.
struct Recording(Arc<Mutex<BTreeSet<String>>>);

impl ReconcileKind for Recording {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl ObserveDeletion for Recording {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        self.0.lock().unwrap().insert(key.name.clone());
        Ok(Outcome::done())
    }
}

/// A replica of the controller, and its only bucket.
struct Replica {
    bucket: BucketWriter,
    maps: Informer<ConfigMap>,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(fixture: &Fixture, observed: &Arc<Mutex<BTreeSet<String>>>) -> Self {
        let (leadership, mut buckets) = elected(vec!["bucket".into()]);
        let selection = select().namespace(&fixture.namespace);
        let (controller, maps, informers) = {
            let cx = Context::new("test", fixture.client.clone());
            let build = Controller::selected::<ConfigMap>(&cx, selection.clone());
            let build = build.reconciler(Recording(observed.clone())).observing_deletion_as_leader();
            (build.build(), cx.informer(selection), cx.informers())
        };
        informers.start();
        let run = Run { leadership, stop: Shutdown::never(), drain: Duration::ZERO, workers: None };
        let task = tokio::spawn(async move {
            let _ = controller.run(run).await;
        });
        Self { bucket: buckets.remove(0), maps, task }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn each_deletion_is_observed_although_the_leader_changes() {
    let fixture = Fixture::new("leaders").await;
    let observed = Arc::default();
    let replicas = [(); 2].map(|()| Replica::start(&fixture, &observed));
    let [first, second] = &replicas;
    first.bucket.lead(Instant::now() + TERM, "test");
    second.bucket.follow("first");
    let names: Vec<_> = (0..9).map(|n| format!("map-{n}")).collect();
    for name in &names {
        fixture.create(name, &[]).await;
    }
    let delete = async |names: &[String]| {
        for name in names {
            fixture.maps().delete(name, &DeleteParams::default()).await.unwrap();
        }
        eventually("the deletions in both caches", TIMEOUT, async || {
            let is_cached = |name: &String| {
                let key = Key::new(fixture.namespace.as_str(), name);
                replicas.iter().any(|replica| replica.maps.contains(&key))
            };
            !names.iter().any(is_cached)
        })
        .await;
    };
    eventually("the objects in both caches", TIMEOUT, async || {
        replicas.iter().all(|replica| replica.maps.len() >= names.len())
    })
    .await;
    first.bucket.drain();
    delete(&names[..3]).await;
    first.bucket.follow("another");
    delete(&names[3..6]).await;
    first.bucket.resign();
    delete(&names[6..]).await;
    second.bucket.lead(Instant::now() + TERM, "test");
    let expected = BTreeSet::from_iter(names);
    eventually("all deletions", TIMEOUT, async || {
        let observed = observed.lock().unwrap().clone();
        if observed == expected { Ok(()) } else { Err(format!("only {observed:?}")) }
    })
    .await;
}
