//! Two replicas with leader election.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use reknit::testing::eventually;

use crate::{
    signals::holders,
    support::{
        objects::Objects,
        process::{self, Process},
        proxy::{Proxy, request::Request},
        server::Server,
        wait::SOON,
    },
};

const OBJECTS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_writes_and_after_its_sigterm_the_other_takes_over() {
    let server = Server::shared().await;
    let objects = server.objects("leaders").await;
    elect_quickly(&objects).await;
    let (first, first_proxy) = started(&server, &objects, "one").await;
    let (second, second_proxy) = started(&server, &objects, "two").await;
    let held = holders(&objects).await;
    assert_eq!(held.len(), 1, "leases held: {held:?}");

    objects.create_service("web").await;
    create(&objects, "x").await;
    let (one, two) = (first_proxy.count(works), second_proxy.count(works));
    println!("{OBJECTS} objects Ready: the leader wrote {one} times, the other {two} times");
    // The first replica leads, because it was ready before the second started.
    assert!(one >= 2 * OBJECTS, "the leader wrote {one} times");
    assert_eq!(two, 0, "the other wrote too");

    let stopped = std::time::Instant::now();
    first.stop().await;
    let at_the_end = first_proxy.count(works);
    create(&objects, "y").await;
    println!("the other had taken over and made {OBJECTS} more Ready {:?} after SIGTERM", stopped.elapsed());
    assert!(second_proxy.count(works) >= 2 * OBJECTS, "the other did not go on");
    assert_eq!(first_proxy.count(works), at_the_end);
    second.stop().await;
    assert_eq!(holders(&objects).await, [""; 0]);
}

/// Returns true for the writes of a leader, which are all writes except those of leases.
fn works(request: &Request) -> bool {
    request.writes() && request.resource != "leases"
}

async fn started(server: &Server, objects: &Objects, pod: &str) -> (Process, Proxy) {
    let proxy = server.proxy().await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let built = process::controller(&kubeconfig).within(&objects.namespace).electing(&objects.namespace, pod);
    let process = built.spawn();
    process.ready().await;
    (process, proxy)
}

async fn create(objects: &Objects, prefix: &str) {
    for n in 0..OBJECTS {
        objects.create(&format!("{prefix}{n}"), "web").await;
    }
    for n in 0..OBJECTS {
        objects.ready(&format!("{prefix}{n}"), "web").await;
    }
}

/// Sets shorter durations than the defaults, so that a takeover takes seconds.
async fn elect_quickly(objects: &Objects) {
    let settings = [("lease-duration", "15s"), ("renew-deadline", "10s"), ("retry-period", "2s")];
    let data: BTreeMap<_, _> =
        settings.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    let metadata = ObjectMeta { name: Some("config-leader-election".into()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    let maps: Api<ConfigMap> = Api::namespaced(objects.client.clone(), &objects.namespace);
    eventually("the settings", SOON, async || maps.create(&PostParams::default(), &map).await).await;
}
