use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use reknit_apis::Key;
use reknit_injection::{Context, Informer, select};
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{SOON, gate::Gate, map, reported::ReportedChanges};

struct Follower {
    maps: Informer<ConfigMap>,
    reported: ReportedChanges,
    gate: Gate,
    metrics: prometheus::Registry,
    /// A client that bypasses the gate, as another process would.
    api: Api<ConfigMap>,
}

impl Follower {
    async fn of(plane: &ControlPlane) -> Self {
        let namespace = plane.namespace("gap").await.unwrap();
        let (client, gate) = Gate::before(plane.client().unwrap());
        let cx = Context::new("test", client);
        let maps = cx.informer::<ConfigMap>(select().namespace(&namespace));
        let reported = ReportedChanges::by(&maps);
        let api: Api<ConfigMap> = Api::namespaced(plane.client().unwrap(), &namespace);
        for name in ["stays", "changes", "goes", "is-replaced"] {
            api.create(&PostParams::default(), &map(name, &[])).await.unwrap();
        }
        cx.informers().start();
        maps.synced().await;
        reported.take();
        Self { maps, reported, gate, metrics: cx.metrics().clone(), api }
    }

    async fn change(&self, name: &str, to: &str) {
        let patch = Patch::Merge(json!({"data": {"is": to}}));
        self.api.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Changes objects while no watch is open.
    async fn changes_of_a_gap(&self) {
        self.change("changes", "twice").await;
        self.change("changes", "more").await;
        self.api.delete("goes", &DeleteParams::default()).await.unwrap();
        self.api.delete("is-replaced", &DeleteParams::default()).await.unwrap();
        self.api.create(&PostParams::default(), &map("is-replaced", &[])).await.unwrap();
        self.api.create(&PostParams::default(), &map("comes", &[])).await.unwrap();
    }

    /// Waits until the cache has the same objects and versions as the API server.
    async fn agrees_with_server(&self) {
        let version = |map: &ConfigMap| (map.metadata.name.clone(), map.metadata.resource_version.clone());
        let agree = async || {
            let truth = self.api.list(&Default::default()).await.map_err(|error| error.to_string())?;
            let mut truth: Vec<_> = truth.iter().map(version).collect();
            let mut held: Vec<_> = self.maps.list().map(|map| version(&map)).collect();
            truth.sort();
            held.sort();
            if truth == held {
                Ok(())
            } else {
                Err(format!("the cache has {held:?}, the server has {truth:?}"))
            }
        };
        eventually("the end state", SOON, agree).await;
    }

    fn lists(&self) -> f64 {
        let families = self.metrics.gather();
        let lists = families.iter().find(|family| family.name() == "reflector_lists_total").unwrap();
        lists.get_metric().iter().map(|metric| metric.get_counter().get_value()).sum()
    }
}

fn count(reported: &[String], word: &str) -> usize {
    reported.iter().filter(|reported| *reported == word).count()
}

#[tokio::test]
async fn a_watch_that_broke_is_resumed_without_a_list() {
    let follower = Follower::of(ControlPlane::shared().await.unwrap()).await;
    follower.gate.cut();
    follower.changes_of_a_gap().await;
    assert!(follower.reported.all().is_empty());
    follower.gate.open();
    follower.agrees_with_server().await;
    let reported = follower.reported.take();
    assert_eq!(reported, ["~changes", "~changes", "-goes", "-is-replaced", "+is-replaced", "+comes"]);
    assert_eq!(follower.lists(), 1.0);
}

#[tokio::test]
async fn deletions_missed_before_a_compaction_are_reported_once_with_the_last_cached_state() {
    let plane = ControlPlane::start().await.unwrap();
    let follower = Follower::of(&plane).await;
    follower.change("goes", "last").await;
    follower.reported.until("~goes").await;
    follower.reported.take();
    let key = Key::new(follower.maps.list().next().unwrap().metadata.namespace.as_deref(), "goes");
    let last = follower.maps.get(&key).unwrap();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let deleted = seen.clone();
    follower.maps.on(move |change| {
        if let reknit_injection::Change::Deleted { last } = change {
            deleted.lock().unwrap().push(last.clone());
        }
    });
    follower.gate.cut();
    follower.changes_of_a_gap().await;
    plane.compact().await.unwrap();
    plane.restart().await.unwrap();
    follower.gate.open();
    follower.agrees_with_server().await;
    let mut reported = follower.reported.take();
    reported.retain(|word| !word.starts_with("+kube"));
    assert_eq!(follower.lists(), 2.0, "the watch ended with 410: {reported:?}");
    reported.sort();
    assert_eq!(reported, ["+comes", "+is-replaced", "-goes", "-is-replaced", "~changes"]);
    assert!(seen.lock().unwrap().iter().any(|object| **object == *last));
    plane.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_that_was_away_is_followed_again() {
    let plane = ControlPlane::start().await.unwrap();
    let follower = Follower::of(&plane).await;
    for round in 0..2 {
        plane.stop().await.unwrap();
        plane.restart().await.unwrap();
        match round {
            0 => follower.changes_of_a_gap().await,
            _ => follower.change("comes", "again").await,
        }
        follower.agrees_with_server().await;
    }
    let reported = follower.reported.take();
    assert_eq!(
        (count(&reported, "-goes"), count(&reported, "+comes"), count(&reported, "+stays")),
        (1, 1, 0),
        "{reported:?}"
    );
}
