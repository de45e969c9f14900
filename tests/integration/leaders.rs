//! Leader election between two replicas.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use reknit::testing::eventually;
use serde_json::json;

use crate::{
    signals::lease_holders,
    support::{
        objects::Objects,
        process::{self, Process},
        proxy::{Proxy, request::Request},
        server::Server,
        wait::TIMEOUT,
    },
};

const OBJECTS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_writes_and_the_other_replica_takes_over_when_the_leader_gets_sigterm() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("leaders").await;
    shorten_lease_durations(&objects).await;
    let (first, first_proxy) = start_replica(&server, &objects, "one").await;
    let (second, second_proxy) = start_replica(&server, &objects, "two").await;
    let holders = lease_holders(&objects).await;
    assert_eq!(holders.len(), 1, "lease holders: {holders:?}");

    objects.create_service("web").await;
    create_ready_objects(&objects, "x").await;
    let (first_writes, second_writes) =
        (first_proxy.count_requests(is_leader_write), second_proxy.count_requests(is_leader_write));
    println!(
        "{OBJECTS} objects Ready: the leader sent {first_writes} writes, the other replica {second_writes}"
    );
    // The first replica leads, because it was ready before the second started.
    assert!(first_writes >= 2 * OBJECTS, "the leader sent {first_writes} writes");
    assert_eq!(second_writes, 0, "the other replica wrote too");

    let stopped = std::time::Instant::now();
    first.stop().await;
    let writes_before_exit = first_proxy.count_requests(is_leader_write);
    create_ready_objects(&objects, "y").await;
    println!("{OBJECTS} more objects were Ready {:?} after SIGTERM", stopped.elapsed());
    assert!(
        second_proxy.count_requests(is_leader_write) >= 2 * OBJECTS,
        "the other replica did not take over"
    );
    assert_eq!(
        first_proxy.count_requests(is_leader_write),
        writes_before_exit,
        "the first replica wrote after it exited"
    );
    second.stop().await;
    assert_eq!(lease_holders(&objects).await, [""; 0]);
}

/// The Pods have generated names, so a leader that did not see them would create them again.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_counts_the_pods_of_the_last_one_although_its_watch_has_not_reported_them() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("late-leader").await;
    let (first, _first_proxy) = start_replica(&server, &objects, "one").await;
    let (second, second_proxy) = start_replica(&server, &objects, "two").await;
    let gate = second_proxy.hold_lines(|line| line.resource == "pods");
    let object = objects.create_deployment("web", "registry.k8s.io/pause:3.10", 3).await;
    objects.wait_for_alive_pods(&object, 3).await;
    first.stop().await;

    objects.patch_deployment_spec("web", json!({ "replicas": 4 })).await;
    objects.wait_for_alive_pods(&object, 4).await;
    assert_eq!(second_proxy.count_requests(|request| request.is("create", "pods")), 1);
    gate.open();
    second.stop().await;
}

/// Returns true for writes that only a leader sends: all except writes of leases.
fn is_leader_write(request: &Request) -> bool {
    request.is_write() && request.resource != "leases"
}

/// Starts a replica with its own proxy, and waits until the replica is ready.
async fn start_replica(server: &Server, objects: &Objects, pod: &str) -> (Process, Proxy) {
    let proxy = server.proxy().await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let builder = process::controller(&kubeconfig)
        .in_namespace(&objects.namespace)
        .with_leader_election(&objects.namespace, pod);
    let process = builder.spawn();
    process.wait_until_ready().await;
    (process, proxy)
}

/// Creates AddressableServices that refer to the Service `web`, and waits until they are ready.
async fn create_ready_objects(objects: &Objects, prefix: &str) {
    for n in 0..OBJECTS {
        objects.create_addressable(&format!("{prefix}{n}"), "web").await;
    }
    for n in 0..OBJECTS {
        objects.wait_until_ready(&format!("{prefix}{n}"), "web").await;
    }
}

/// Configures shorter lease durations than the defaults, so that a takeover takes seconds.
async fn shorten_lease_durations(objects: &Objects) {
    let settings = [("lease-duration", "15s"), ("renew-deadline", "10s"), ("retry-period", "2s")];
    let data: BTreeMap<_, _> =
        settings.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    let metadata = ObjectMeta { name: Some("config-leader-election".into()), ..ObjectMeta::default() };
    let config_map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    let config_maps: Api<ConfigMap> = Api::namespaced(objects.client.clone(), &objects.namespace);
    eventually("the ConfigMap is created", TIMEOUT, async || {
        config_maps.create(&PostParams::default(), &config_map).await
    })
    .await;
}
