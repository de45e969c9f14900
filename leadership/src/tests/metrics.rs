//! The metrics of buckets.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::Registry;
use reknit_apis::Key;
use serde_json::json;
use tokio::time::sleep;

use super::replica::{LEASE, RETRY, Replica, wait_for_shares};
use crate::{
    LeaderElectionConfig,
    fake::FakeApi,
    internal::{Candidate, Electors, Identity},
};

const UNOWNED: &str = "reknit_leader_election_buckets_unowned";

fn two_buckets() -> LeaderElectionConfig {
    LeaderElectionConfig { buckets: 2, ..LeaderElectionConfig::default() }
}

/// The value of a gauge of the controller `lamps`.
fn gauge(registry: &Registry, name: &str) -> f64 {
    gauge_of(registry, "lamps", name)
}

/// The value of a gauge of this controller.
fn gauge_of(registry: &Registry, controller: &str, name: &str) -> f64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name).unwrap();
    let is_of = |metric: &&prometheus::proto::Metric| metric.get_label()[0].value() == controller;
    let metric = family.get_metric().iter().find(is_of).unwrap();
    assert_eq!(metric.get_label()[0].name(), "controller");
    metric.get_gauge().get_value()
}

/// The numbers of buckets that are led, unowned and in transition.
fn counts(registry: &Registry) -> [f64; 3] {
    ["reknit_leader_election_buckets_led", UNOWNED, "reknit_leader_election_buckets_in_transition"]
        .map(|name| gauge(registry, name))
}

#[tokio::test(start_paused = true)]
async fn a_bucket_is_in_transition_from_the_change_of_its_member_until_that_member_leads_it() {
    let api = FakeApi::default();
    let first = Replica::start_with(&api, "a", 2, &["lamps"]);
    wait_for_shares(&[&first], &[2]).await;
    assert_eq!(counts(&first.registry), [2.0, 0.0, 0.0]);

    let keys: Vec<_> = (0..20).map(|n| Key::new("default", &n.to_string())).collect();
    let passes: Vec<_> = keys.iter().map(|key| first.lamps().start_pass(key).unwrap()).collect();
    let second = Replica::start_with(&api, "b", 2, &["lamps"]);
    sleep(RETRY).await;
    assert_eq!(counts(&first.registry), [2.0, 0.0, 1.0], "the passes still run");
    assert_eq!(counts(&second.registry), [0.0, 0.0, 1.0]);

    drop(passes);
    wait_for_shares(&[&first, &second], &[1, 1]).await;
    assert_eq!(counts(&first.registry), [1.0, 0.0, 0.0]);
    assert_eq!(counts(&second.registry), [1.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_is_unowned_once_its_leader_has_stopped_renewing() {
    let api = FakeApi::default();
    let replicas = ["a", "b"].map(|name| Replica::start_with(&api, name, 2, &["lamps"]));
    wait_for_shares(&[&replicas[0], &replicas[1]], &[1, 1]).await;
    api.set_down(true);
    sleep(LEASE + RETRY).await;
    assert_eq!(counts(&replicas[0].registry)[..2], [0.0, 2.0]);
    api.set_down(false);
    wait_for_shares(&[&replicas[0], &replicas[1]], &[1, 1]).await;
    assert_eq!(counts(&replicas[0].registry)[..2], [1.0, 0.0]);
}

/// So an alert takes the minimum over the replicas for unowned buckets, and the maximum for those in transition.
#[tokio::test(start_paused = true)]
async fn a_replica_whose_watch_is_silent_sees_no_other_leader_and_no_transition() {
    let api = FakeApi::default();
    let silent = Replica::start_with(&api, "a", 2, &["lamps"]);
    wait_for_shares(&[&silent], &[2]).await;
    api.silence_watches();
    let other = Replica::start_with(&api, "b", 2, &["lamps"]);
    sleep(LEASE + RETRY).await;
    assert_eq!(counts(&silent.registry), [2.0, 0.0, 0.0]);
    assert_eq!(counts(&other.registry), [0.0, 0.0, 1.0]);

    let leader = Replica::start_with(&api, "c", 2, &["bulbs"]);
    while leader.led() < 2 {
        sleep(RETRY).await;
    }
    api.silence_watches();
    let standby = Replica::start_watching(&api, "d", &two_buckets(), &["bulbs"], true);
    sleep(LEASE + RETRY).await;
    let bulbs = |replica: &Replica| gauge_of(&replica.registry, "bulbs", UNOWNED);
    assert_eq!((bulbs(&leader), bulbs(&standby)), (0.0, 2.0));
}

/// A client that may write Leases can name any holder and any duration.
#[tokio::test(start_paused = true)]
async fn a_bucket_whose_lease_names_no_live_member_is_unowned_and_led_again_after_ten_minutes() {
    let api = FakeApi::default();
    let replica = Replica::start_with(&api, "a", 1, &["lamps"]);
    wait_for_shares(&[&replica], &[1]).await;
    let held = json!({"holderIdentity": "nobody", "leaseDurationSeconds": i32::MAX, "leaseTransitions": 1,
        "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"});
    api.put_lease("test.lamps.00-of-01", held);
    wait_for_shares(&[&replica], &[0]).await;
    assert_eq!(counts(&replica.registry)[..2], [0.0, 1.0]);
    sleep(Duration::from_secs(590)).await;
    assert_eq!(counts(&replica.registry)[..2], [0.0, 1.0]);
    wait_for_shares(&[&replica], &[1]).await;
    assert_eq!(counts(&replica.registry), [1.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn the_buckets_of_a_replica_that_waits_for_another_number_are_owned_and_in_transition() {
    let api = FakeApi::default();
    let old = Replica::start_with(&api, "a", 1, &["lamps"]);
    wait_for_shares(&[&old], &[1]).await;
    let new = Replica::start_with(&api, "b", 10, &["lamps"]);
    sleep(RETRY).await;
    assert_eq!(counts(&new.registry), [0.0, 0.0, 10.0]);
    assert_eq!(counts(&old.registry), [1.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_a_bucket_is_unowned_until_its_leader_is_known() {
    let (api, registry) = (FakeApi::default(), Registry::new());
    let config = LeaderElectionConfig { buckets: 2, ..Default::default() };
    let identity = Identity::on("a");
    let candidate = Candidate::new(api.client(), "ns", "test", identity, &config, &registry).unwrap();
    let (mut leadership, electors) = Electors::new(&candidate, "lamps").unwrap();
    assert_eq!(counts(&registry), [0.0, 2.0, 0.0]);
    let run = tokio::spawn(electors.run(std::future::pending(), std::future::pending()));
    while leadership.led_buckets().len() < 2 {
        leadership.changed().await;
    }
    assert_eq!(counts(&registry), [2.0, 0.0, 0.0]);
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn the_time_of_the_last_handover_is_that_of_a_bucket_gained_or_handed_over() {
    let last = |replica: &Replica| {
        gauge(&replica.registry, "reknit_leader_election_last_handover_timestamp_seconds")
    };
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let (api, start) = (FakeApi::default(), now());
    let first = Replica::start_with(&api, "a", 2, &["lamps"]);
    assert_eq!(last(&first), 0.0);
    wait_for_shares(&[&first], &[2]).await;
    let gained = last(&first);
    assert!((start..=now()).contains(&gained), "{gained} is not between {start} and now");

    let second = Replica::start_with(&api, "b", 2, &["lamps"]);
    wait_for_shares(&[&first, &second], &[1, 1]).await;
    let handed_over = last(&first);
    assert!(
        handed_over > gained && last(&second) >= handed_over,
        "{gained}, {handed_over}, {}",
        last(&second)
    );
    sleep(Duration::from_secs(60)).await;
    assert_eq!(last(&first), handed_over, "a renewal is no handover");
}
