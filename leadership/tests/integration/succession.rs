//! Changes of the leader, and how long they take.

use std::{collections::BTreeSet, time::Instant};

use reknit_leadership::LeaderElectionConfig;
use reknit_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::process::{
    LEASE_DURATION, LEASE_NAME, Leases, Process, RETRY_PERIOD, TIMEOUT, config, elector_client,
    expired_lease, key, long_config,
};

#[tokio::test]
async fn a_lease_has_knatives_format_and_is_released_on_a_clean_stop() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("create").await.unwrap();
    let leases = Leases::of(plane.client().unwrap(), &namespace);
    let mut process = Process::start(elector_client(plane), &namespace, &config());
    process.wait_for_leadership().await;
    let spec = leases.get(LEASE_NAME).await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(process.identity.as_str()));
    assert_eq!(spec.lease_duration_seconds, Some(3));
    assert_eq!(spec.lease_transitions, Some(0));
    assert!(spec.acquire_time.is_some() && spec.renew_time.is_some());
    process.stop().await;
    assert_eq!(leases.holder(LEASE_NAME).await, "");
}

#[tokio::test]
async fn after_a_clean_stop_another_process_leads_at_its_next_attempt() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("stop").await.unwrap();
    let mut leader = Process::start(elector_client(plane), &namespace, &long_config());
    leader.wait_for_leadership().await;
    let mut standby = Process::start(elector_client(plane), &namespace, &long_config());
    eventually("standby", TIMEOUT, async || standby.leadership.has_known_leaders()).await;
    let previous = leader.leadership.clone();
    let start = Instant::now();
    leader.stop().await;
    assert!(!previous.leads(&key()));
    standby.wait_for_leadership().await;
    println!("took over {:?} after a clean stop", start.elapsed());
    // Without the release, the lease could not have been acquired this soon.
    assert!(start.elapsed() < long_config().lease_duration - RETRY_PERIOD * 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn after_a_kill_another_process_leads_when_the_lease_has_expired() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("kill").await.unwrap();
    let mut leader = Process::start(elector_client(plane), &namespace, &config());
    leader.wait_for_leadership().await;
    let mut standby = Process::start(elector_client(plane), &namespace, &config());
    eventually("standby", TIMEOUT, async || standby.leadership.has_known_leaders()).await;
    let previous = leader.leadership.clone();
    let start = Instant::now();
    drop(leader);
    standby.wait_for_leadership().await;
    println!("took over {:?} after a kill", start.elapsed());
    assert!(!previous.leads(&key()), "the leadership of the killed process had not ended yet");
    // The killed process renewed the lease at most a retry period before the kill.
    assert!(start.elapsed() > LEASE_DURATION - RETRY_PERIOD * 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn edited_labels_do_not_keep_a_dead_holder_alive() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("labels").await.unwrap();
    let leases = Leases::of(plane.client().unwrap(), &namespace);
    leases.create(LEASE_NAME, expired_lease()).await;
    let mut process = Process::start(elector_client(plane), &namespace, &config());
    let edits = async {
        for edit in 0.. {
            leases.label(LEASE_NAME, &edit.to_string()).await;
            tokio::time::sleep(RETRY_PERIOD / 10).await;
        }
    };
    tokio::select! {
        () = process.wait_for_leadership() => {}
        () = edits => {}
    }
    assert_eq!(leases.get(LEASE_NAME).await.spec.unwrap().lease_transitions, Some(5));
}

/// The times are beyond the range of a timestamp, and the API server stores them.
#[tokio::test]
async fn a_lease_whose_times_cannot_be_read_is_acquired_after_its_duration() {
    let plane = ControlPlane::shared().await.unwrap();
    for unreadable in [&["renewTime"][..], &["acquireTime", "renewTime"]] {
        let namespace = plane.namespace("unreadable").await.unwrap();
        let mut spec = expired_lease();
        spec["leaseDurationSeconds"] = json!(LEASE_DURATION.as_secs());
        unreadable.iter().for_each(|time| spec[*time] = json!("9999-12-31T23:59:59.999999Z"));
        let metadata = json!({"name": LEASE_NAME, "namespace": namespace});
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec});
        plane.apply_yaml(&lease.to_string()).await.unwrap();
        let start = Instant::now();
        let mut process = Process::start(elector_client(plane), &namespace, &config());
        process.wait_for_leadership().await;
        assert!(start.elapsed() >= LEASE_DURATION, "{unreadable:?}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_vacant_lease_is_acquired_at_once() {
    let plane = ControlPlane::shared().await.unwrap();
    let mut without_duration = expired_lease();
    without_duration["leaseDurationSeconds"] = Value::Null;
    let released = json!({"holderIdentity": "", "leaseDurationSeconds": 3600, "leaseTransitions": i32::MAX,
        "renewTime": "2100-01-01T00:00:00.000000Z"});
    for spec in [Value::Null, json!({}), without_duration, released] {
        let namespace = plane.namespace("vacant").await.unwrap();
        let leases = Leases::of(plane.client().unwrap(), &namespace);
        leases.create(LEASE_NAME, spec.clone()).await;
        let mut process = Process::start(elector_client(plane), &namespace, &long_config());
        let start = Instant::now();
        process.wait_for_leadership().await;
        assert!(start.elapsed() < long_config().lease_duration, "{spec}: {:?}", start.elapsed());
        assert_eq!(leases.holder(LEASE_NAME).await, process.identity.as_str());
    }
}

#[tokio::test]
async fn leadership_ends_before_the_lease_expires_if_the_server_is_down_and_resumes_when_it_is_back() {
    let plane = ControlPlane::start().await.unwrap();
    let namespace = plane.namespace("outage").await.unwrap();
    let mut process = Process::start(elector_client(&plane), &namespace, &long_config());
    process.wait_for_leadership().await;
    let stopping = Instant::now();
    plane.stop().await.unwrap();
    let stopped = Instant::now();
    process.wait_for_loss().await;
    println!("leadership ended {:?} after the server began to stop", stopping.elapsed());
    // The last renewal was at most two retry periods before the stop, so no other process can have acquired the lease.
    assert!(stopped.elapsed() < long_config().lease_duration - RETRY_PERIOD * 2, "{:?}", stopped.elapsed());
    assert!(!process.leadership.has_known_leaders());
    plane.restart().await.unwrap();
    process.wait_for_leadership().await;
}

#[tokio::test]
async fn each_bucket_has_its_own_lease_and_leader() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("buckets").await.unwrap();
    let leases = Leases::of(plane.client().unwrap(), &namespace);
    let three_buckets = LeaderElectionConfig { buckets: 3, ..config() };
    let other_lease = "test.lamps.demo.01-of-03";
    let held_lease = json!({"holderIdentity": "other", "leaseDurationSeconds": 3600, "leaseTransitions": 0,
        "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"});
    leases.create(other_lease, held_lease).await;
    let mut process = Process::start(elector_client(plane), &namespace, &three_buckets);
    let mut gained = BTreeSet::new();
    while gained.len() < 2 {
        let change = tokio::time::timeout(TIMEOUT, process.leadership.changed()).await.unwrap();
        gained.extend(change.gained.iter().map(|name| name.to_string()));
    }
    let names = ["test.lamps.demo.00-of-03", "test.lamps.demo.02-of-03"];
    assert_eq!(gained, names.map(String::from).into());
    eventually("the holder of the third lease to be known", TIMEOUT, async || {
        process.leadership.has_known_leaders()
    })
    .await;
    for number in 0..100 {
        let key = reknit_apis::Key::new("default", &number.to_string());
        assert_eq!(process.leadership.leads(&key), !process.leadership.bucket_owns(other_lease, &key));
    }
    process.stop().await;
    for name in names {
        assert_eq!(leases.holder(name).await, "");
    }
    assert_eq!(leases.holder(other_lease).await, "other");
}
