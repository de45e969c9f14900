//! Rolling updates that change the number of buckets.

use super::{
    cluster::{Cluster, Replica, SHORT_LEASES},
    load::Load,
    report::{Gap, Report},
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an idle machine: hack/test.sh runs it after the others"]
async fn a_rolling_update_of_the_number_of_buckets_leaves_each_key_with_one_leader_and_short_gaps() {
    let cluster = Cluster::start("buckets", SHORT_LEASES, 1).await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(cluster.start_replica().await);
    }
    let load = Load::mixed(&cluster.objects, 10, 0).await;
    load.wait_for_operations(20).await;

    cluster.set_buckets(10).await;
    let replicas = replace(&cluster, replicas).await;
    cluster.wait_for_shares(&[4, 3, 3]).await;
    load.wait_for_operations(20).await;
    cluster.set_buckets(1).await;
    let _replicas = replace(&cluster, replicas).await;
    load.wait_for_operations(20).await;
    let report = Report::after(load, &cluster).await;
    report.assert_led_by_one(&[]);
    let longest = report.gaps().into_iter().max_by_key(|gap| gap.length).expect("a key");
    let Gap { length, end, last, key } = &longest;
    println!("the longest time without a leader: {length:?} until {end}, for {key}; its last term: {last:?}");
    assert!(longest.length <= SHORT_LEASES.retry_period * 2, "{longest:#?}");
}

/// Replaces the replicas one after the other, as a Deployment does: each new one is ready before an old one stops.
async fn replace(cluster: &Cluster, old: Vec<Replica>) -> Vec<Replica> {
    let mut new = Vec::new();
    for mut replica in old {
        new.push(cluster.start_replica().await);
        replica.stop().await;
    }
    new
}
