//! Ready, failed, terminating, foreign and orphaned pods of a SimpleDeployment.

use kube::{ResourceExt, api::DeleteParams};
use reknit::testing::eventually;
use serde_json::json;

use super::IMAGE;
use crate::support::{
    objects::Objects,
    process::{self, Process},
    server::Server,
    simple_deployments::{is_controlled_by, labelled_pod, ready_pod_status, unready_pod_status},
    wait::TIMEOUT,
};

/// Starts the sample controller in a namespace of its own.
async fn start(prefix: &str) -> (Server, Objects, Process) {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace(prefix).await;
    let controller = process::controller(server.kubeconfig())
        .without_leader_election()
        .in_namespace(&objects.namespace)
        .spawn();
    controller.wait_until_ready().await;
    (server, objects, controller)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_counts_ready_and_unready_pods() {
    let (_server, objects, controller) = start("ready").await;
    let object = objects.create_deployment("x", IMAGE, 2).await;
    let pods = objects.wait_for_alive_pods(&object, 2).await;
    objects.wait_for_ready_and_unready_pods("x", 0, 2).await;
    objects.set_pod_status(&pods[0].name_any(), ready_pod_status()).await;
    objects.wait_for_ready_and_unready_pods("x", 1, 1).await;
    objects.set_pod_status(&pods[1].name_any(), ready_pod_status()).await;
    objects.wait_for_ready_pods("x", 2).await;
    objects.set_pod_status(&pods[0].name_any(), unready_pod_status()).await;
    objects.wait_for_ready_and_unready_pods("x", 1, 1).await;
    assert_eq!(objects.controlled_pods(&object).await.len(), 2, "an unready pod was replaced");

    objects.patch_deployment_spec("x", json!({ "replicas": 1 })).await;
    objects.wait_for_ready_pods("x", 1).await;
    let left = objects.wait_for_alive_pods(&object, 1).await;
    assert_eq!(left[0].name_any(), pods[1].name_any(), "the ready pod was deleted first");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_and_evicted_pods_are_kept_and_others_are_created_in_their_place() {
    let (_server, objects, controller) = start("failed").await;
    let object = objects.create_deployment("x", IMAGE, 3).await;
    let pods = objects.wait_for_alive_pods(&object, 3).await;
    let [failed, evicted, good] = [0, 1, 2].map(|n| pods[n].name_any());
    objects.set_pod_status(&good, ready_pod_status()).await;
    objects.set_pod_status(&failed, json!({ "phase": "Failed" })).await;
    objects.set_pod_status(&evicted, json!({ "phase": "Failed", "reason": "Evicted" })).await;
    let alive = objects.wait_for_alive_pods(&object, 3).await;
    objects.wait_for_ready_and_unready_pods("x", 1, 2).await;
    assert!(alive.iter().any(|pod| pod.name_any() == good));
    assert_eq!(objects.controlled_pods(&object).await.len(), 5, "failed pods were deleted");

    objects.patch_deployment_spec("x", json!({ "replicas": 1 })).await;
    objects.wait_for_ready_pods("x", 1).await;
    let left = objects.wait_for_alive_pods(&object, 1).await;
    assert_eq!(left[0].name_any(), good, "the ready pod was deleted");
    assert!(objects.get_pod(&failed).await.is_some() && objects.get_pod(&evicted).await.is_some());
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminating_and_deleted_pods_are_replaced() {
    let (_server, objects, controller) = start("terminating").await;
    let object = objects.create_deployment("x", IMAGE, 2).await;
    let pods = objects.wait_for_alive_pods(&object, 2).await;
    let [bound, unbound] = [pods[0].name_any(), pods[1].name_any()];
    // No kubelet confirms the deletion of the bound pod, so the pod keeps terminating. The unbound pod is gone at once.
    super::bind_to_node(&objects, &pods[0]).await;
    for name in [&bound, &unbound] {
        objects.pods().delete(name, &DeleteParams::default()).await.expect("the deletion is accepted");
    }
    let alive = objects.wait_for_alive_pods(&object, 2).await;
    assert!(alive.iter().all(|pod| pod.name_any() != bound && pod.name_any() != unbound));
    let terminating = objects.get_pod(&bound).await.expect("the pod still exists");
    assert!(terminating.metadata.deletion_timestamp.is_some());
    objects.delete_pod_now(&bound).await;
    objects.wait_for_ready_and_unready_pods("x", 0, 2).await;
    assert_eq!(objects.controlled_pods(&object).await.len(), 2);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_image_replaces_all_pods() {
    let (_server, objects, controller) = start("image").await;
    let object = objects.create_deployment("x", IMAGE, 3).await;
    let before = objects.wait_for_alive_pods(&object, 3).await;
    objects.patch_deployment_spec("x", json!({ "image": "registry.k8s.io/pause:3.9" })).await;
    eventually("three pods of the new image", TIMEOUT, async || {
        let alive = objects.alive_pods(&object).await;
        let with_new_image = alive.iter().filter(|pod| {
            pod.spec.as_ref().and_then(|spec| spec.containers[0].image.as_deref())
                == Some("registry.k8s.io/pause:3.9")
        });
        (alive.len() == 3 && with_new_image.count() == 3).then_some(())
    })
    .await;
    for pod in before {
        assert!(objects.get_pod(&pod.name_any()).await.is_none(), "an old pod still exists");
    }
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_another_object_controls_are_left_alone_and_do_not_count() {
    let (_server, objects, controller) = start("foreign").await;
    let other = objects.create_service("other").await; // any object can be the controller of a pod
    let mut pod = labelled_pod("foreign", "x", IMAGE);
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Service", "name": "other", "uid": other.uid(), "controller": true,
    }]);
    let foreign = objects.create_pod(pod).await;
    let object = objects.create_deployment("x", IMAGE, 1).await;
    objects.wait_for_alive_pods(&object, 1).await;
    objects.set_pod_status("foreign", ready_pod_status()).await;
    objects.wait_for_ready_and_unready_pods("x", 0, 1).await;
    objects.patch_deployment_spec("x", json!({ "replicas": 0 })).await;
    objects.wait_for_alive_pods(&object, 0).await;
    objects.wait_for_ready_pods("x", 0).await;
    let after = objects.get_pod("foreign").await.expect("the pod still exists");
    assert_eq!(after.metadata.owner_references, foreign.metadata.owner_references);
    assert_eq!(after.metadata.deletion_timestamp, None);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orphaned_pods_are_adopted_and_pods_whose_label_changes_are_released() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("adopted").await;
    // Created before the controller starts, because the order of events from two watches is not fixed.
    objects.create_pod(labelled_pod("early", "x", IMAGE)).await;
    objects.create_pod(labelled_pod("elsewhere", "y", IMAGE)).await;
    let mut owned = labelled_pod("owned", "x", IMAGE);
    owned["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "beside", "uid": "b", // an owner that is not the controller
    }]);
    objects.create_pod(owned).await;
    let controller = process::controller(server.kubeconfig())
        .without_leader_election()
        .in_namespace(&objects.namespace)
        .spawn();
    controller.wait_until_ready().await;
    let object = objects.create_deployment("x", IMAGE, 3).await;
    let pods = objects.wait_for_alive_pods(&object, 3).await;
    let find = |name: &str| pods.iter().find(|pod| pod.name_any() == name);
    assert!(find("early").is_some() && find("elsewhere").is_none());
    let owned = find("owned").expect("the pod is adopted");
    assert_eq!(owned.owner_references().len(), 2, "the other owner reference was removed");

    // A fourth pod is adopted, and then one of the four is deleted.
    objects.create_pod(labelled_pod("late", "x", IMAGE)).await;
    objects.wait_for_adoption_and_scale_down("late", &object, 3).await;

    let released = objects.alive_pods(&object).await[0].name_any();
    objects.relabel_pod(&released, "another").await;
    eventually("the pod is released", TIMEOUT, async || {
        let pod = objects.get_pod(&released).await?;
        (!is_controlled_by(&pod, &object)).then_some(())
    })
    .await;
    objects.wait_for_alive_pods(&object, 3).await;
    assert!(objects.get_pod(&released).await.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()));
    controller.stop().await;
}
