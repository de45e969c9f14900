//! The time until other replicas reconcile the objects of a replica that stops or dies.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{
    cluster::{Cluster, DEFAULT_LEASES, Durations, SHORT_LEASES},
    load::Load,
    report::Report,
};
use crate::support::process::Signal;

const CREATIONS_PER_SECOND: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an idle machine: hack/test.sh runs it after the others"]
async fn objects_of_a_replica_that_stops_are_reconciled_within_a_second() {
    assert_reconciled_after_end_of_leader("sigterm", DEFAULT_LEASES, Signal::TERM, SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an idle machine: hack/test.sh runs it after the others"]
async fn objects_of_a_killed_replica_are_reconciled_a_second_after_its_leases_expire() {
    assert_reconciled_after_end_of_leader("sigkill", SHORT_LEASES, Signal::KILL, SHORT_LEASES.lease + SECOND)
        .await;
}

/// Ends one of three replicas by the signal while objects are created, and checks how long each object waits.
async fn assert_reconciled_after_end_of_leader(
    name: &str,
    durations: Durations,
    signal: Signal,
    limit: Duration,
) {
    let cluster = Cluster::start(name, durations, 10).await;
    // The third replica leads buckets that the others have handed over.
    let [_first, _second, mut ending] = cluster.start_three_replicas().await;
    let ended = ending.name.clone();
    let load = Load::creating(&cluster.objects, CREATIONS_PER_SECOND).await;
    load.wait_for_operations(20).await;
    let signalled = Timestamp::now();
    match signal {
        Signal::TERM => ending.stop().await,
        _ => ending.kill().await,
    };
    cluster.wait_for_holders("two leaders", |shares| !shares.contains_key(&ended) && shares.len() == 2).await;
    load.wait_for_operations(20).await;
    let report = Report::after(load, &cluster).await;
    report.assert_led_by_one(&[]);
    report.assert_reconciled_within(limit, signalled);
    let led = report.reconciled().into_iter().filter(|change| change.by == ended).count();
    assert!(led > 0, "the replica reconciled nothing before its end");
}
