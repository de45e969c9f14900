//! SimpleDeployments: the number of pods never exceeds the replicas, no pod is created or deleted needlessly, and only
//! the right pods count.

mod kinds_of_pods;
mod refusals;
mod with_nodes;

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use reknit::testing::eventually;
use samples_apis::SimpleDeployment;
use serde_json::{Value, json};

use crate::support::{
    objects::Objects,
    process,
    proxy::Proxy,
    replicas::{is_alive, is_controlled_by},
    server::Server,
    tally::{Seen, Tally, Write},
    wait::{SOON, settled},
};

const IMAGE: &str = "registry.k8s.io/pause:3.10";
const NAME: &str = "simpledeployments.samples.knative.dev";

#[tokio::test(flavor = "multi_thread")]
async fn scaling_0_50_7_30_with_a_watch_a_second_late_creates_and_deletes_exactly_the_needed_pods() {
    let server = Server::shared().await;
    let objects = server.objects("scaled").await;
    let proxy = server.proxy().await;
    proxy.delay_lines("pods", Duration::from_secs(1));
    let deployments = Tally::of::<SimpleDeployment>(&objects.client, &objects.namespace).await;
    let pods = Tally::of::<Pod>(&objects.client, &objects.namespace).await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let controller = process::controller(&kubeconfig).alone().within(&objects.namespace).spawn();
    controller.ready().await;

    let object = objects.deploy("x", IMAGE, 0).await;
    objects.all_pods_ready("x", 0).await;
    let done = AtomicBool::new(false);
    let passes = async || controller.metric("reknit_reconcile_total", &[("controller", NAME)]).await;
    tokio::join!(poke_until(&objects, &done), async {
        objects.want("x", json!({ "replicas": 50 })).await;
        let fifty = objects.all_alive(&object, 50).await;
        // The first half is bound to nodes. These pods are deleted gracefully, and stay until a kubelet confirms it.
        for pod in &fifty[..25] {
            bind(&objects, pod).await;
        }
        heard_of_nodes(&proxy, 25).await;

        objects.want("x", json!({ "replicas": 7 })).await;
        objects.all_alive(&object, 7).await;
        at_rest(&proxy).await;
        objects.want("x", json!({ "replicas": 30 })).await;
        objects.all_alive(&object, 30).await;
        at_rest(&proxy).await;
        // On a busy machine the pokes have caused fewer reconciles by then.
        eventually("more than a hundred reconciles", SOON, async || passes().await > 100.0).await;
        done.store(true, Ordering::Relaxed);
    });
    objects.pods_not_ready("x", 0, 30).await;

    let seen = needed(&object, &deployments.all(), &pods.all());
    let (created, deleted) = (sent(&proxy, "create"), sent(&proxy, "delete"));
    let going =
        objects.pods_of(&object).await.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
    println!("{} reconciles, at most {} pods alive", passes().await, seen.most);
    println!("creations sent: {created}, seen by a watch: {}", seen.created);
    println!("deletions sent: {deleted}, seen by a watch: {}, {going} of them graceful", seen.deleted);
    assert_eq!((created, seen.created), (50 + 23, 50 + 23), "creations sent, and seen");
    assert_eq!((deleted, seen.deleted), (43, 43), "deletions sent, and seen");
    assert_eq!(going, 43 - 25, "what was on no node goes first");
    assert_eq!(seen.most, 50);
    controller.stop().await;
}

/// The writes to pods that a watch of the test saw.
#[derive(Debug, Default)]
struct Needed {
    created: usize,
    deleted: usize,
    most: usize,
}

/// Replays the writes of the server in their order. Asserts that each pod was created when one was missing, and deleted
/// when there was one too many.
fn needed(object: &SimpleDeployment, deployments: &[Seen], pods: &[Seen]) -> Needed {
    let mut writes: Vec<&Seen> = deployments.iter().chain(pods).collect();
    writes.sort_by_key(|seen| seen.version());
    let (mut asked, mut alive, mut needed) = (0, BTreeSet::new(), Needed::default());
    for seen in writes {
        if let Some(replicas) = seen.object.data["spec"]["replicas"].as_u64() {
            asked = usize::try_from(replicas).expect("a small number");
            continue;
        }
        let pod: Pod = seen.object.clone().try_parse().expect("a pod");
        let name = pod.name_any();
        if seen.write != Write::Deleted && is_alive(&pod) && is_controlled_by(&pod, object) {
            if alive.insert(name) {
                needed.created += 1;
                assert!(alive.len() <= asked, "{} pods where {asked} were asked for", alive.len());
            }
        } else if alive.remove(&name) {
            needed.deleted += 1;
            assert!(alive.len() >= asked, "deleted to {} pods where {asked} were asked for", alive.len());
        }
        needed.most = needed.most.max(alive.len());
    }
    needed
}

/// Changes the object again and again, so that it is reconciled more often than the watch reports pods.
async fn poke_until(objects: &Objects, done: &AtomicBool) {
    let api = objects.deployments();
    for n in 0.. {
        if done.load(Ordering::Relaxed) {
            return;
        }
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { "poked": n.to_string() } } }));
        api.patch("x", &PatchParams::default(), &patch).await.expect("the object is patched");
    }
}

async fn bind(objects: &Objects, pod: &Pod) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod.name_any() },
        "target": { "apiVersion": "v1", "kind": "Node", "name": "nowhere" },
    });
    let (pods, name, params) = (objects.pods(), pod.name_any(), PostParams::default());
    let bound = pods.create_subresource::<_, Value>("binding", &name, &params, &binding);
    bound.await.expect("the pod is bound");
}

/// Waits until the controller has received this number of pods on nodes.
async fn heard_of_nodes(proxy: &Proxy, count: usize) {
    eventually("the controller knows what is on a node", SOON, async || {
        let lines = proxy.delivered();
        let placed = lines
            .iter()
            .filter(|line| line.resource == "pods" && line.object["spec"]["nodeName"].is_string());
        placed.map(|line| line.name().to_owned()).collect::<BTreeSet<_>>().len() >= count
    })
    .await;
}

/// Waits until the delayed watch has delivered everything, and no more pods are created or deleted.
async fn at_rest(proxy: &Proxy) {
    settled(Duration::from_secs(2), "creations and deletions", async || {
        (sent(proxy, "create"), sent(proxy, "delete"))
    })
    .await;
}

fn sent(proxy: &Proxy, verb: &str) -> usize {
    proxy.count(|request| request.is(verb, "pods"))
}
