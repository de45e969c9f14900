//! A rolling update from another release and back.

use std::{collections::BTreeSet, path::Path};

use reknit::testing::Program;

use super::{
    audit::{ADDRESSABLES, Write},
    cluster::{Cluster, SHORT_LEASES},
    load::Load,
    report::Report,
};

/// The environment variable with the path of the other release's sample controller.
const OTHER_RELEASE: &str = "OTHER_RELEASE";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs another release, which hack/rollover.sh builds"]
async fn two_releases_lead_no_key_twice_lose_no_finalizer_and_write_no_unchanged_child() {
    let path = std::env::var(OTHER_RELEASE).expect("OTHER_RELEASE is the path of a sample controller");
    let other = |kubeconfig: &Path| Program::new(&path, kubeconfig).env("ENABLE_WEBHOOKS", "false");
    let cluster = Cluster::start("releases", SHORT_LEASES, 10).await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(cluster.start_replica_of(other).await);
    }
    for number in 0..5 {
        let deployment = cluster.objects.create_deployment(&format!("d{number}"), "nginx", 2).await;
        cluster.objects.wait_for_alive_pods(&deployment, 2).await;
    }
    let load = Load::mixed(&cluster.objects, 10, 0).await;
    load.wait_for_operations(40).await;
    let settled = cluster.writes().iter().map(Write::version).max();

    let mut new = Vec::new();
    for mut old in replicas {
        new.push(cluster.start_replica().await);
        old.stop().await;
    }
    cluster.wait_for_shares(&[4, 3, 3]).await;
    load.wait_for_operations(40).await;
    let mut back = Vec::new();
    for mut replica in new {
        back.push(cluster.start_replica_of(other).await);
        replica.stop().await;
    }
    load.wait_for_operations(40).await;
    // Each deleted object is gone, so its finalizer was released.
    Report::after(load, &cluster).await.assert_led_by_one(&[]);
    let writes = cluster.writes();
    assert_finalizers_stay(&writes);
    let rewritten: Vec<_> = writes
        .iter()
        .filter(|write| write.resource == "pods" && !write.is_by_test() && Some(write.version()) > settled)
        .collect();
    assert!(rewritten.is_empty(), "no SimpleDeployment changed: {rewritten:#?}");
}

/// Panics if a replica took the finalizer from an object that was not being deleted.
fn assert_finalizers_stay(writes: &[Write]) {
    let mut finalized = BTreeSet::new();
    for write in writes.iter().filter(|write| write.resource == ADDRESSABLES && write.is_accepted()) {
        let metadata = &write.object["metadata"];
        let (is_deleted, uid) = (metadata["deletionTimestamp"].is_string(), &metadata["uid"]);
        match metadata["finalizers"].is_array() {
            true => drop(finalized.insert(uid.to_string())),
            false => assert!(is_deleted || !finalized.contains(&uid.to_string()), "{write:#?}"),
        }
    }
    assert!(!finalized.is_empty(), "no replica set a finalizer");
}
