use kube::{
    ResourceExt,
    api::{DeleteParams, EvictParams, PropagationPolicy},
};
use reknit::testing::{ControlPlane, eventually};
use samples_apis::SimpleDeployment;
use serde_json::json;

use super::IMAGE;
use crate::support::{process, server::Server, wait::SOON};

#[tokio::test(flavor = "multi_thread")]
async fn on_nodes_pods_become_ready_are_replaced_and_go_with_their_owner_unless_they_are_orphaned() {
    let server = Server::own(ControlPlane::builder()).await;
    server.nodes(2).await.expect("nodes");
    server.install::<samples_apis::AddressableService>().await.expect("the CRD");
    server.install::<SimpleDeployment>().await.expect("the CRD");
    let objects = server.objects("real").await;
    let controller = process::controller(server.kubeconfig()).alone().spawn();
    let object = objects.deploy("x", IMAGE, 5).await;
    objects.all_pods_ready("x", 5).await;

    let evicted = objects.alive(&object).await[0].name_any();
    objects.pods().evict(&evicted, &EvictParams::default()).await.expect("the eviction");
    eventually("the evicted pod is replaced", SOON, async || {
        objects.pod(&evicted).await.is_none() && objects.alive(&object).await.len() == 5
    })
    .await;
    objects.all_pods_ready("x", 5).await;

    objects.want("x", json!({ "image": "registry.k8s.io/pause:3.9", "replicas": 3 })).await;
    objects.all_pods_ready("x", 3).await;
    eventually("the old pods are gone", SOON, async || objects.pods_of(&object).await.len() == 3).await;

    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..Default::default() };
    let before: Vec<_> = objects.alive(&object).await.iter().map(ResourceExt::name_any).collect();
    objects.deployments().delete("x", &orphan).await.expect("the deletion is accepted");
    eventually("its pods belong to nobody", SOON, async || {
        objects.deployments().get_opt("x").await.ok()?.is_none().then_some(())?;
        objects.pods_of(&object).await.is_empty().then_some(())
    })
    .await;
    // A new object of the same name adopts the pods.
    let heir = objects.deploy("x", "registry.k8s.io/pause:3.9", 3).await;
    objects.all_pods_ready("x", 3).await;
    let mut after: Vec<_> = objects.alive(&heir).await.iter().map(ResourceExt::name_any).collect();
    let mut before = before;
    before.sort();
    after.sort();
    assert_eq!(after, before, "the orphans are the pods of the heir");

    objects.deployments().delete("x", &DeleteParams::default()).await.expect("the deletion is accepted");
    eventually("its pods are collected", SOON, async || {
        objects.pods().list(&Default::default()).await.ok()?.items.is_empty().then_some(())
    })
    .await;
    controller.stop().await;
}
