//! SimpleDeployments on a control plane with nodes and controllers, where pods become ready and garbage is collected.

use kube::{
    ResourceExt,
    api::{DeleteParams, EvictParams, PropagationPolicy},
};
use reknit::testing::{ControlPlane, eventually};
use reknit_samples::SimpleDeployment;
use serde_json::json;

use super::IMAGE;
use crate::support::{process, server::Server, wait::TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
async fn pods_on_nodes_become_ready_are_replaced_and_are_deleted_with_their_owner_unless_orphaned() {
    let server = Server::own(ControlPlane::builder()).await;
    server.nodes(2).await.expect("nodes");
    server.install::<reknit_samples::AddressableService>().await.expect("the CRD");
    server.install::<SimpleDeployment>().await.expect("the CRD");
    let objects = server.objects_in_new_namespace("real").await;
    let controller = process::controller(server.kubeconfig()).without_leader_election().spawn();
    let object = objects.create_deployment("x", IMAGE, 5).await;
    objects.wait_for_ready_pods("x", 5).await;

    let evicted = objects.alive_pods(&object).await[0].name_any();
    objects.pods().evict(&evicted, &EvictParams::default()).await.expect("the eviction");
    eventually("the evicted pod is replaced", TIMEOUT, async || {
        objects.get_pod(&evicted).await.is_none() && objects.alive_pods(&object).await.len() == 5
    })
    .await;
    objects.wait_for_ready_pods("x", 5).await;

    objects.patch_deployment_spec("x", json!({ "image": "registry.k8s.io/pause:3.9", "replicas": 3 })).await;
    objects.wait_for_ready_pods("x", 3).await;
    eventually("the pods of the old image are gone", TIMEOUT, async || {
        objects.controlled_pods(&object).await.len() == 3
    })
    .await;

    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..Default::default() };
    let mut before: Vec<_> = objects.alive_pods(&object).await.iter().map(ResourceExt::name_any).collect();
    objects.deployments().delete("x", &orphan).await.expect("the deletion is accepted");
    eventually("the pods are orphaned", TIMEOUT, async || {
        objects.deployments().get_opt("x").await.ok()?.is_none().then_some(())?;
        objects.controlled_pods(&object).await.is_empty().then_some(())
    })
    .await;
    // A new object of the same name adopts the pods.
    let successor = objects.create_deployment("x", "registry.k8s.io/pause:3.9", 3).await;
    objects.wait_for_ready_pods("x", 3).await;
    let mut after: Vec<_> = objects.alive_pods(&successor).await.iter().map(ResourceExt::name_any).collect();
    before.sort();
    after.sort();
    assert_eq!(after, before, "the new object has other pods than the old one");

    objects.deployments().delete("x", &DeleteParams::default()).await.expect("the deletion is accepted");
    eventually("the pods are garbage-collected", TIMEOUT, async || {
        objects.pods().list(&Default::default()).await.ok()?.items.is_empty().then_some(())
    })
    .await;
    controller.stop().await;
}
