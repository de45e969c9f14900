//! Changes of the leader, and the time that they take.

use std::{collections::BTreeSet, time::Instant};

use reknit_reconciler::leader::LeaderElectionConfig;
use reknit_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::process::{LEASE, Leases, NAME, Process, RETRY, SOON, client, config, expired, key, patient};

#[tokio::test]
async fn a_lease_has_knatives_format_and_is_released_on_a_clean_stop() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("create").await.unwrap();
    let leases = Leases::of(plane.client().unwrap(), &namespace);
    let mut process = Process::start(client(plane), &namespace, &config());
    process.led().await;
    let spec = leases.get(NAME).await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(process.identity.as_str()));
    assert_eq!(spec.lease_duration_seconds, Some(3));
    assert_eq!(spec.lease_transitions, Some(0));
    assert!(spec.acquire_time.is_some() && spec.renew_time.is_some());
    process.stop().await;
    assert_eq!(leases.holder(NAME).await, "");
}

#[tokio::test]
async fn after_a_clean_stop_another_process_leads_at_its_next_attempt() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("stop").await.unwrap();
    let mut leader = Process::start(client(plane), &namespace, &patient());
    leader.led().await;
    let mut standby = Process::start(client(plane), &namespace, &patient());
    eventually("standby", SOON, async || standby.leadership.known()).await;
    let gone = leader.leadership.clone();
    let began = Instant::now();
    leader.stop().await;
    assert!(!gone.leads(&key()));
    standby.led().await;
    println!("took over {:?} after a clean stop", began.elapsed());
    // A lease that was not released could not have been acquired this soon.
    assert!(began.elapsed() < patient().lease_duration - RETRY * 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn after_a_kill_another_process_leads_when_the_lease_has_expired() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("kill").await.unwrap();
    let mut leader = Process::start(client(plane), &namespace, &config());
    leader.led().await;
    let mut standby = Process::start(client(plane), &namespace, &config());
    eventually("standby", SOON, async || standby.leadership.known()).await;
    let gone = leader.leadership.clone();
    let began = Instant::now();
    drop(leader);
    standby.led().await;
    println!("took over {:?} after a kill", began.elapsed());
    assert!(!gone.leads(&key()), "the leadership of the killed process had not ended yet");
    // Its last renewal was at most a retry period before the kill.
    assert!(began.elapsed() > LEASE - RETRY * 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn edited_labels_do_not_keep_a_dead_holder_alive() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("labels").await.unwrap();
    let leases = Leases::of(plane.client().unwrap(), &namespace);
    leases.put(NAME, expired()).await;
    let mut process = Process::start(client(plane), &namespace, &config());
    let edits = async {
        for edit in 0.. {
            leases.label(NAME, &edit.to_string()).await;
            tokio::time::sleep(RETRY / 10).await;
        }
    };
    tokio::select! {
        () = process.led() => {}
        () = edits => {}
    }
    assert_eq!(leases.get(NAME).await.spec.unwrap().lease_transitions, Some(5));
}

#[tokio::test]
async fn a_vacant_lease_is_acquired_at_once() {
    let plane = ControlPlane::shared().await.unwrap();
    let mut without_duration = expired();
    without_duration["leaseDurationSeconds"] = Value::Null;
    let released = json!({"holderIdentity": "", "leaseDurationSeconds": 3600, "leaseTransitions": i32::MAX,
        "renewTime": "2100-01-01T00:00:00.000000Z"});
    for spec in [Value::Null, json!({}), without_duration, released] {
        let namespace = plane.namespace("vacant").await.unwrap();
        let leases = Leases::of(plane.client().unwrap(), &namespace);
        leases.put(NAME, spec.clone()).await;
        let mut process = Process::start(client(plane), &namespace, &patient());
        let began = Instant::now();
        process.led().await;
        assert!(began.elapsed() < patient().lease_duration, "{spec}: {:?}", began.elapsed());
        assert_eq!(leases.holder(NAME).await, process.identity.as_str());
    }
}

#[tokio::test]
async fn leadership_ends_at_the_renew_deadline_without_a_server_and_resumes_with_it() {
    let plane = ControlPlane::start().await.unwrap();
    let namespace = plane.namespace("outage").await.unwrap();
    let mut process = Process::start(client(&plane), &namespace, &patient());
    process.led().await;
    let stopping = Instant::now();
    plane.stop().await.unwrap();
    let stopped = Instant::now();
    process.lost().await;
    println!("leadership ended {:?} after the server began to stop", stopping.elapsed());
    // Its last renewal was at most two retry periods before, so no other process can have acquired the lease.
    assert!(stopped.elapsed() < patient().lease_duration - RETRY * 2, "{:?}", stopped.elapsed());
    assert!(!process.leadership.known());
    plane.restart().await.unwrap();
    process.led().await;
}

#[tokio::test]
async fn each_bucket_has_its_own_lease_and_leader() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("buckets").await.unwrap();
    let leases = Leases::of(plane.client().unwrap(), &namespace);
    let config = LeaderElectionConfig { buckets: 3, ..config() };
    let other = "test.lamps.demo.01-of-03";
    let held = json!({"holderIdentity": "other", "leaseDurationSeconds": 3600, "leaseTransitions": 0,
        "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"});
    leases.put(other, held).await;
    let mut process = Process::start(client(plane), &namespace, &config);
    let mut gained = BTreeSet::new();
    while gained.len() < 2 {
        let change = tokio::time::timeout(SOON, process.leadership.changed()).await.unwrap();
        gained.extend(change.gained.iter().map(|name| name.to_string()));
    }
    let names = ["test.lamps.demo.00-of-03", "test.lamps.demo.02-of-03"];
    assert_eq!(gained, names.map(String::from).into());
    eventually("the third one's holder", SOON, async || process.leadership.known()).await;
    for number in 0..100 {
        let key = reknit_apis::Key::new("default", &number.to_string());
        assert_eq!(process.leadership.leads(&key), !process.leadership.owns(other, &key));
    }
    process.stop().await;
    for name in names {
        assert_eq!(leases.holder(name).await, "");
    }
    assert_eq!(leases.holder(other).await, "other");
}
