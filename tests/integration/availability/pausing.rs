//! A process that is paused for longer than its leases.

use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use reknit::testing::eventually;

use super::{
    cluster::{Cluster, SHORT_LEASES},
    load::Load,
    report::Report,
};
use crate::support::{
    process::{self, Signal},
    proxy::request::Request,
    wait::TIMEOUT,
};

/// The number of objects, one for each worker of the paused replica.
const OBJECTS: usize = 50;
/// The log line of a pass that is dropped because the bucket was lost.
const DROPPED: &str = "the pass is dropped: the key is no longer led";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an idle machine: hack/test.sh runs it after the others"]
async fn a_paused_replica_writes_no_object_of_a_lost_bucket_when_it_resumes() {
    let cluster = Cluster::start("pausing", SHORT_LEASES, 10).await;
    let replicas = cluster.start_three_replicas().await;
    let paused = &replicas[0];
    let load = Load::mixed(&cluster.objects, 20, 0).await;
    load.wait_for_operations(40).await;
    // Without a running pass, the process is not about to send a request.
    load.stop().await.wait_until_reconciled(&cluster.objects).await;

    paused.signal(Signal::STOP);
    let load = Load::mixed(&cluster.objects, 20, 1).await;
    cluster.wait_for_holders("two leaders", |shares| !shares.contains_key(&paused.name)).await;
    load.wait_for_operations(20).await;
    let resumed = Timestamp::now();
    paused.signal(Signal::CONT);
    cluster.wait_for_shares(&[4, 3, 3]).await;
    load.wait_for_operations(20).await;
    let report = Report::after(load, &cluster).await;
    report.assert_led_by_one(&[]);
    let by_paused = report.writes_of_replicas().filter(|write| write.sender == paused.name);
    let before = by_paused.filter(|write| write.received < resumed).count();
    assert!(before > 0, "the paused replica wrote nothing before");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an idle machine: hack/test.sh runs it after the others"]
async fn a_paused_pass_is_dropped_when_the_process_resumes_without_its_bucket() {
    let cluster = Cluster::start("pass", SHORT_LEASES, 1).await;
    let proxy = cluster.proxy().await;
    let program = |kubeconfig: &Path| {
        process::controller(kubeconfig).env("K_THREADS_PER_CONTROLLER", &OBJECTS.to_string())
    };
    let mut paused = cluster.start_replica_through(&proxy, program).await;
    let _other = cluster.start_replica().await;
    let is_finalizer_patch = |request: &Request| request.is("patch", "addressableservices");
    let gate = proxy.hold_responses(is_finalizer_patch);
    let objects = &cluster.objects;
    for number in 0..OBJECTS {
        objects.create_addressable(&format!("x{number}"), "none").await;
    }
    gate.wait_for_arrivals(OBJECTS).await;

    // The passes wait for responses, which arrive while the process is paused.
    paused.signal(Signal::STOP);
    gate.open();
    for number in 0..OBJECTS {
        objects.wait_for_state(&format!("x{number}"), &objects.unavailable("none")).await;
    }
    paused.signal(Signal::CONT);
    eventually("all passes are dropped", TIMEOUT, async || {
        paused.process.lines().into_iter().filter(|line| line["message"] == DROPPED).count() == OBJECTS
    })
    .await;
    paused.stop().await;

    let report = Report::new(&cluster);
    report.assert_led_by_one(&[]);
}
