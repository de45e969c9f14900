//! Tests of the pace at which a new version changes what nothing prompted.
use std::time::{Duration, Instant};

use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::{Api, api::ListParams};
use reknit_testing::eventually;
use serde_json::json;

use crate::{
    child::Child,
    cluster::{TIMEOUT, TestCluster, with_cluster},
    observability::scrape_sum,
    trials,
};

trials![an_upgrade_changes_children_at_the_pace_of_the_brake_while_new_objects_are_reconciled_at_once];

const MAPS: usize = 30;

impl TestCluster {
    /// Starts a version of the controller that gives the children this color.
    fn paint(&self, color: &str) -> Child {
        let command = self.command("children").env("COLOR", color).arg("--disable-ha");
        command.arg("--max-unprompted-changes=60").spawn()
    }

    /// The number of children that have this color.
    async fn count(&self, color: &str) -> usize {
        let children: Api<ConfigMap> = Api::namespaced(self.client(), &self.namespace);
        let children = children.list(&ListParams::default().labels("color")).await.unwrap();
        children
            .into_iter()
            .filter(|child| child.data.as_ref().is_some_and(|data| data["color"] == color))
            .count()
    }

    async fn wait_for(&self, color: &str, wanted: usize) {
        eventually(color, TIMEOUT * 4, async || {
            let count = self.count(color).await;
            if count == wanted { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
    }
}

fn an_upgrade_changes_children_at_the_pace_of_the_brake_while_new_objects_are_reconciled_at_once() {
    with_cluster(async |cluster| {
        let old = cluster.paint("red");
        old.wait_for_address("metrics");
        eventually("the informers", TIMEOUT, async || {
            let synced = crate::life_cycle::get(&old.wait_for_address("probes"), "/readiness").0 == 200;
            if synced { Ok(()) } else { Err("not ready".to_owned()) }
        })
        .await;
        for n in 0..MAPS {
            cluster.apply_map(&format!("map-{n}"), json!({})).await;
        }
        cluster.wait_for("red", MAPS).await; // users prompted these changes
        assert_eq!(scrape_sum(&old, "reknit_unprompted_writes_total"), 0.0);
        old.signal("TERM");
        assert_eq!(old.wait().0, 0);

        let (new, start) = (cluster.paint("blue"), Instant::now());
        println!("{}", new.wait_for_line("unprompted changes are paced: the key waits"));
        cluster.apply_map("new", json!({})).await;
        new.wait_for_line("reconcile of new ends");
        assert!(scrape_sum(&new, "reknit_held_keys") > 0.0, "others still wait");
        cluster.wait_for("blue", MAPS + 1).await;
        let pace = Duration::from_secs(MAPS as u64 - 6 - 2); // six at once, and two passes that run beside each other
        assert!(start.elapsed() > pace, "{:?}", start.elapsed());
        assert_eq!(scrape_sum(&new, "reknit_unprompted_writes_total"), MAPS as f64);
        eventually("no held key", TIMEOUT, async || {
            let held = scrape_sum(&new, "reknit_held_keys");
            if held == 0.0 { Ok(()) } else { Err(held.to_string()) }
        })
        .await;
        let events: Api<Event> = Api::namespaced(cluster.client(), &cluster.namespace);
        let paced = events.list(&ListParams::default()).await.unwrap().into_iter();
        let paced: Vec<_> =
            paced.filter(|event| event.reason.as_deref() == Some("UnpromptedChangesPaced")).collect();
        assert_eq!(paced.len(), 1, "{paced:#?}");
        println!("{}", serde_json::to_string_pretty(&paced[0]).unwrap());
    });
}
