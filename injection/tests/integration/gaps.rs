use std::path::Path;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use reknit_apis::Key;
use reknit_injection::{Context, Informer, select};
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{TIME_LIMIT, gate::Gate, map, reported::ReportedChanges};

/// An informer of ConfigMaps behind a gate, in a namespace with the ConfigMaps `stays`, `changes`, `goes` and
/// `is-replaced`.
struct GatedMaps {
    maps: Informer<ConfigMap>,
    reported: ReportedChanges,
    gate: Gate,
    metrics: prometheus::Registry,
    /// A client that bypasses the gate, as another process would.
    api: Api<ConfigMap>,
}

impl GatedMaps {
    async fn start(plane: &ControlPlane) -> Self {
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

    async fn change(&self, name: &str, value: &str) {
        let patch = Patch::Merge(json!({"data": {"is": value}}));
        self.api.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Changes, deletes, replaces and creates ConfigMaps. The tests call it while no watch is open.
    async fn change_all(&self) {
        self.change("changes", "twice").await;
        self.change("changes", "more").await;
        self.api.delete("goes", &DeleteParams::default()).await.unwrap();
        self.api.delete("is-replaced", &DeleteParams::default()).await.unwrap();
        self.api.create(&PostParams::default(), &map("is-replaced", &[])).await.unwrap();
        self.api.create(&PostParams::default(), &map("comes", &[])).await.unwrap();
    }

    /// Waits until the cache has the same objects and versions as the API server.
    async fn until_up_to_date(&self) {
        let version = |map: &ConfigMap| (map.metadata.name.clone(), map.metadata.resource_version.clone());
        let agree = async || {
            let on_server = self.api.list(&Default::default()).await.map_err(|error| error.to_string())?;
            let mut on_server: Vec<_> = on_server.iter().map(version).collect();
            let mut cached: Vec<_> = self.maps.list().map(|map| version(&map)).collect();
            on_server.sort();
            cached.sort();
            if on_server == cached {
                Ok(())
            } else {
                Err(format!("the cache has {cached:?}, the server has {on_server:?}"))
            }
        };
        eventually("the cache to converge", TIME_LIMIT, agree).await;
    }

    /// The number of lists that the reflector has started.
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
async fn a_broken_watch_is_resumed_without_a_list() {
    let gated = GatedMaps::start(ControlPlane::shared().await.unwrap()).await;
    gated.gate.cut();
    gated.change_all().await;
    assert!(gated.reported.all().is_empty());
    gated.gate.open();
    gated.until_up_to_date().await;
    let reported = gated.reported.take();
    assert_eq!(reported, ["~changes", "~changes", "-goes", "-is-replaced", "+is-replaced", "+comes"]);
    assert_eq!(gated.lists(), 1.0);
}

#[tokio::test]
async fn deletions_missed_before_a_compaction_are_reported_once_with_the_last_cached_state() {
    let plane = ControlPlane::start().await.unwrap();
    let gated = GatedMaps::start(&plane).await;
    gated.change("goes", "last").await;
    gated.reported.until("~goes").await;
    gated.reported.take();
    let key = Key::new(gated.maps.list().next().unwrap().metadata.namespace.as_deref(), "goes");
    let last = gated.maps.get(&key).unwrap();
    let deleted = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let recorded = deleted.clone();
    gated.maps.on(move |change| {
        if let reknit_injection::Change::Deleted { last } = change {
            recorded.lock().unwrap().push(last.clone());
        }
    });
    gated.gate.cut();
    gated.change_all().await;
    plane.compact().await.unwrap();
    plane.restart().await.unwrap();
    gated.gate.open();
    gated.until_up_to_date().await;
    let mut reported = gated.reported.take();
    assert_eq!(gated.lists(), 2.0, "expected one list at the start and one after the 410: {reported:?}");
    reported.sort();
    assert_eq!(reported, ["+comes", "+is-replaced", "-goes", "-is-replaced", "~changes"]);
    assert!(deleted.lock().unwrap().iter().any(|object| **object == *last));
    plane.stop().await.unwrap();
}

#[tokio::test]
async fn the_cache_follows_a_restarted_server() {
    let plane = ControlPlane::start().await.unwrap();
    let gated = GatedMaps::start(&plane).await;
    for round in 0..2 {
        plane.stop().await.unwrap();
        plane.restart().await.unwrap();
        match round {
            0 => gated.change_all().await,
            _ => gated.change("comes", "again").await,
        }
        gated.until_up_to_date().await;
    }
    let reported = gated.reported.take();
    assert_eq!(
        (count(&reported, "-goes"), count(&reported, "+comes"), count(&reported, "+stays")),
        (1, 1, 0),
        "{reported:?}"
    );
}

/// The resourceVersions of such a server are lower than those that the cache has seen.
#[tokio::test]
async fn the_cache_follows_a_server_that_was_restored_from_a_backup() {
    let plane = ControlPlane::start().await.unwrap();
    let gated = GatedMaps::start(&plane).await;
    let (stored, backup) = (plane.folder().join("etcd"), plane.folder().join("backup"));
    let copy = async |from: &Path, to: &Path| {
        let _ = tokio::fs::remove_dir_all(to).await;
        let status = tokio::process::Command::new("cp").arg("-a").args([from, to]).status().await.unwrap();
        assert!(status.success());
    };
    plane.stop().await.unwrap();
    copy(&stored, &backup).await;
    plane.restart().await.unwrap();
    gated.change_all().await;
    for round in 0..50 {
        gated.change("stays", &round.to_string()).await;
    }
    gated.until_up_to_date().await;
    gated.reported.take();
    plane.stop().await.unwrap();
    copy(&backup, &stored).await;
    plane.restart().await.unwrap();
    gated.change("stays", "restored").await;
    gated.until_up_to_date().await;
    let reported = gated.reported.take();
    assert_eq!(
        (count(&reported, "+goes"), count(&reported, "-comes"), count(&reported, "-stays")),
        (1, 1, 0),
        "{reported:?}"
    );
    gated.change("stays", "again").await;
    gated.until_up_to_date().await;
    plane.stop().await.unwrap();
}
