//! A rolling restart of all replicas.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{
    cluster::{Cluster, DEFAULT_LEASES},
    load::Load,
    report::Report,
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an idle machine: hack/test.sh runs it after the others"]
async fn every_object_is_reconciled_within_two_seconds_during_a_rolling_restart() {
    let cluster = Cluster::start("rollout", DEFAULT_LEASES, 10).await;
    let replicas = cluster.start_three_replicas().await;
    let load = Load::creating(&cluster.objects, 20).await;
    load.wait_for_operations(20).await;

    let began = Timestamp::now();
    let mut new_replicas = Vec::new();
    for mut old in replicas {
        new_replicas.push(cluster.start_replica().await);
        old.stop().await;
    }
    cluster.wait_for_shares(&[4, 3, 3]).await;
    load.wait_for_operations(20).await;
    let report = Report::after(load, &cluster).await;
    report.assert_led_by_one(&[]);
    report.assert_reconciled_within(Duration::from_secs(2), began);
}
