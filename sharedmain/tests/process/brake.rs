//! Tests of the pace at which a new version changes what nothing prompted.
use std::time::{Duration, Instant};

use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::{Api, api::ListParams};
use reknit_testing::eventually;
use serde_json::json;
use tokio::time::sleep;

use crate::{
    child::{Child, parse_line},
    cluster::{TIMEOUT, TestCluster, with_cluster},
    number_of,
    observability::scrape_sum,
    trials,
};

trials![
    an_upgrade_changes_children_at_the_pace_of_the_brake_while_new_objects_are_reconciled_at_once;
    ignored: an_upgrade_of_many_children_takes_as_long_as_the_brake_says,
];

/// The limit of the time in which a new object is reconciled. One that the brake held would wait for all others.
const AT_ONCE: Duration = Duration::from_secs(5);

impl TestCluster {
    /// Starts a version of the controller that gives the children this color.
    fn paint(&self, color: &str, per_minute: usize) -> Child {
        let command = self.command("children").env("COLOR", color).arg("--disable-ha");
        command.arg(format!("--max-unprompted-changes={per_minute}")).spawn()
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
        eventually(color, TIMEOUT * 10, async || {
            let count = self.count(color).await;
            if count == wanted { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
    }

    /// Creates objects one after another while keys of the upgrade are held. Returns the times until their reconciles
    /// ended.
    async fn create_while_held(&self, version: &Child) -> Vec<Duration> {
        let mut times = Vec::new();
        loop {
            let (name, start) = (format!("new-{}", times.len()), Instant::now());
            self.apply_map(&name, json!({})).await;
            version.wait_for_line(&format!("reconcile of {name} ends"));
            let took = start.elapsed();
            if scrape_sum(version, "reknit_held_keys") == 0.0 {
                return times;
            }
            times.push(took);
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Upgrades a controller whose new version changes this number of children. Returns the key that the first warning names.
    async fn upgrade(&self, count: usize, per_minute: usize) -> String {
        let old = self.paint("red", per_minute);
        old.wait_for_address("metrics");
        eventually("the informers", TIMEOUT, async || {
            let synced = crate::life_cycle::get(&old.wait_for_address("probes"), "/readiness").0 == 200;
            if synced { Ok(()) } else { Err("not ready".to_owned()) }
        })
        .await;
        for n in 0..count {
            self.apply_map(&format!("map-{n}"), json!({})).await;
        }
        self.wait_for("red", count).await; // users prompted these changes
        assert_eq!(scrape_sum(&old, "reknit_unprompted_writes_total"), 0.0);
        old.signal("TERM");
        assert_eq!(old.wait().0, 0);

        let (new, start) = (self.paint("blue", per_minute), Instant::now());
        let warning = new.wait_for_line("unprompted changes are paced: the key waits");
        println!("{warning}");
        let times = self.create_while_held(&new).await;
        let took = start.elapsed();
        let longest = *times.iter().max().expect("new objects waited for the others");
        println!(
            "{count} children at {per_minute} a minute: {took:.1?}; {} new objects meanwhile, reconciled within {longest:?}",
            times.len(),
        );
        assert!(longest < AT_ONCE, "{longest:?}");
        // A tenth at once, and two passes that run beside each other.
        let paced = count.saturating_sub(per_minute / 10 + 2);
        let pace = Duration::from_secs_f64(paced as f64 * 60.0 / per_minute as f64);
        assert!(took > pace, "{took:?}, not {pace:?}");
        self.wait_for("blue", count + times.len() + 1).await;
        assert_eq!(scrape_sum(&new, "reknit_unprompted_writes_total"), count as f64);
        parse_line(&warning)["key"].as_str().expect("the warning has a key").to_owned()
    }
}

fn an_upgrade_changes_children_at_the_pace_of_the_brake_while_new_objects_are_reconciled_at_once() {
    with_cluster(async |cluster| {
        let waits = cluster.upgrade(30, 60).await;
        let events: Api<Event> = Api::namespaced(cluster.client(), &cluster.namespace);
        let paced = events.list(&ListParams::default()).await.unwrap().into_iter();
        let paced: Vec<_> =
            paced.filter(|event| event.reason.as_deref() == Some("UnpromptedChangesPaced")).collect();
        assert!((1..5).contains(&paced.len()), "one a minute, and not one for each key: {paced:#?}");
        println!("{}", serde_json::to_string_pretty(&paced[0]).unwrap());
        let is_about_it = |event: &Event| {
            let about = event.regarding.clone().unwrap_or_default();
            about.kind.as_deref() == Some("ConfigMap")
                && format!("{}/{}", about.namespace.unwrap_or_default(), about.name.unwrap_or_default())
                    == waits
        };
        assert!(paced.iter().any(is_about_it), "the event is on {waits}: {paced:#?}");
    });
}

/// As many children and changes a minute as the environment says, such as `BRAKE_CHILDREN=2000 BRAKE_PER_MINUTE=100`.
fn an_upgrade_of_many_children_takes_as_long_as_the_brake_says() {
    with_cluster(async |cluster| {
        let _ = cluster.upgrade(number_of("BRAKE_CHILDREN", 100), number_of("BRAKE_PER_MINUTE", 600)).await;
    });
}
