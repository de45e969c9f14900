//! SimpleDeployments: there are never more pods than replicas, no pod is created or deleted needlessly, and only pods
//! that are alive and controlled by the object count.

mod pod_states;
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
use reknit_samples::SimpleDeployment;
use serde_json::{Value, json};

use crate::support::{
    objects::Objects,
    process,
    proxy::Proxy,
    server::Server,
    simple_deployments::{is_alive, is_controlled_by},
    wait::{TIMEOUT, wait_until_settled},
    watch_recorder::{RecordedEvent, WatchRecorder, Write},
};

const IMAGE: &str = "registry.k8s.io/pause:3.10";
const CONTROLLER: &str = "simpledeployments.samples.knative.dev";

#[tokio::test(flavor = "multi_thread")]
async fn scaling_0_50_7_30_with_a_watch_a_second_late_creates_and_deletes_exactly_the_needed_pods() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("scaled").await;
    let proxy = server.proxy().await;
    proxy.delay_lines("pods", Duration::from_secs(1));
    let deployment_recorder =
        WatchRecorder::start::<SimpleDeployment>(&objects.client, &objects.namespace).await;
    let pod_recorder = WatchRecorder::start::<Pod>(&objects.client, &objects.namespace).await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let controller =
        process::controller(&kubeconfig).without_leader_election().in_namespace(&objects.namespace).spawn();
    controller.wait_until_ready().await;

    let object = objects.create_deployment("x", IMAGE, 0).await;
    objects.wait_for_ready_pods("x", 0).await;
    let done = AtomicBool::new(false);
    let passes =
        async || controller.metric("controller_runtime_reconcile_total", &[("controller", CONTROLLER)]).await;
    tokio::join!(annotate_until(&objects, &done), async {
        objects.patch_deployment_spec("x", json!({ "replicas": 50 })).await;
        let fifty_pods = objects.wait_for_alive_pods(&object, 50).await;
        // The first half is bound to a node. A deleted pod on a node stays until a kubelet confirms the deletion.
        for pod in &fifty_pods[..25] {
            bind_to_node(&objects, pod).await;
        }
        wait_for_delivered_bindings(&proxy, 25).await;

        objects.patch_deployment_spec("x", json!({ "replicas": 7 })).await;
        objects.wait_for_alive_pods(&object, 7).await;
        wait_until_writes_settle(&proxy).await;
        objects.patch_deployment_spec("x", json!({ "replicas": 30 })).await;
        objects.wait_for_alive_pods(&object, 30).await;
        wait_until_writes_settle(&proxy).await;
        // On a busy machine, the annotations may need more time to cause that many reconciles.
        eventually("more than a hundred reconciles", TIMEOUT, async || passes().await > 100.0).await;
        done.store(true, Ordering::Relaxed);
    });
    objects.wait_for_ready_and_unready_pods("x", 0, 30).await;

    let replayed = replay_writes(&object, &deployment_recorder.all_events(), &pod_recorder.all_events());
    let (created, deleted) = (count_pod_requests(&proxy, "create"), count_pod_requests(&proxy, "delete"));
    let terminating = objects
        .controlled_pods(&object)
        .await
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_some())
        .count();
    println!("{} reconciles, at most {} pods alive", passes().await, replayed.max_alive);
    println!("creations sent: {created}, reported by a watch: {}", replayed.created);
    println!(
        "deletions sent: {deleted}, reported by a watch: {}, {terminating} of them graceful",
        replayed.deleted
    );
    assert_eq!((created, replayed.created), (50 + 23, 50 + 23), "creations sent, and reported by a watch");
    assert_eq!((deleted, replayed.deleted), (43, 43), "deletions sent, and reported by a watch");
    assert_eq!(terminating, 43 - 25, "terminating pods: 25 of the 43 deleted pods had no node and are gone");
    assert_eq!(replayed.max_alive, 50);
    controller.stop().await;
}

/// The numbers of pods that were created and deleted, and the highest number of pods that were alive at once.
#[derive(Debug, Default)]
struct ReplayedWrites {
    created: usize,
    deleted: usize,
    max_alive: usize,
}

/// Replays the events of SimpleDeployments and pods in the order of their resourceVersions. Asserts that a pod was
/// created only when one was missing, and deleted only when there was one too many.
fn replay_writes(
    object: &SimpleDeployment,
    deployment_events: &[RecordedEvent],
    pod_events: &[RecordedEvent],
) -> ReplayedWrites {
    let mut events: Vec<&RecordedEvent> = deployment_events.iter().chain(pod_events).collect();
    events.sort_by_key(|event| event.version());
    let (mut desired, mut alive, mut replayed) = (0, BTreeSet::new(), ReplayedWrites::default());
    for event in events {
        if let Some(replicas) = event.object.data["spec"]["replicas"].as_u64() {
            desired = usize::try_from(replicas).expect("a small number");
            continue;
        }
        let pod: Pod = event.object.clone().try_parse().expect("a pod");
        let name = pod.name_any();
        if event.write != Write::Deleted && is_alive(&pod) && is_controlled_by(&pod, object) {
            if alive.insert(name) {
                replayed.created += 1;
                assert!(alive.len() <= desired, "created {} pods, {desired} replicas desired", alive.len());
            }
        } else if alive.remove(&name) {
            replayed.deleted += 1;
            assert!(alive.len() >= desired, "only {} pods left, {desired} replicas desired", alive.len());
        }
        replayed.max_alive = replayed.max_alive.max(alive.len());
    }
    replayed
}

/// Changes an annotation of the object until `done` is set, so that reconciles are more frequent than watch events of
/// pods.
async fn annotate_until(objects: &Objects, done: &AtomicBool) {
    let api = objects.deployments();
    for n in 0.. {
        if done.load(Ordering::Relaxed) {
            return;
        }
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { "count": n.to_string() } } }));
        api.patch("x", &PatchParams::default(), &patch).await.expect("the object is patched");
    }
}

/// Binds a pod to a node that does not exist.
async fn bind_to_node(objects: &Objects, pod: &Pod) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod.name_any() },
        "target": { "apiVersion": "v1", "kind": "Node", "name": "nowhere" },
    });
    let created: Result<Value, _> =
        objects.pods().create_subresource("binding", &pod.name_any(), &PostParams::default(), &binding).await;
    created.expect("the pod is bound");
}

/// Waits until the watch has delivered this number of pods that are bound to a node.
async fn wait_for_delivered_bindings(proxy: &Proxy, count: usize) {
    eventually(format!("{count} bound pods are delivered"), TIMEOUT, async || {
        let lines = proxy.delivered_lines();
        let bound = lines
            .iter()
            .filter(|line| line.resource == "pods" && line.object["spec"]["nodeName"].is_string());
        bound.map(|line| line.name().to_owned()).collect::<BTreeSet<_>>().len() >= count
    })
    .await;
}

/// Waits until no pod has been created or deleted for longer than the watch is delayed.
async fn wait_until_writes_settle(proxy: &Proxy) {
    wait_until_settled(Duration::from_secs(2), "creations and deletions", async || {
        (count_pod_requests(proxy, "create"), count_pod_requests(proxy, "delete"))
    })
    .await;
}

/// Counts the requests of the controller for pods with this verb.
fn count_pod_requests(proxy: &Proxy, verb: &str) -> usize {
    proxy.count_requests(|request| request.is(verb, "pods"))
}
