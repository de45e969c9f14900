use kube::{ResourceExt, api::DeleteParams};
use reknit::testing::eventually;
use serde_json::json;

use super::IMAGE;
use crate::support::{
    objects::Objects,
    process::{self, Process},
    replicas::{is_controlled_by, labelled, running},
    server::Server,
    wait::SOON,
};

/// Starts a controller in a namespace of its own.
async fn start(prefix: &str) -> (Server, Objects, Process) {
    let server = Server::shared().await;
    let objects = server.objects(prefix).await;
    let controller = process::controller(server.kubeconfig()).alone().within(&objects.namespace).spawn();
    controller.ready().await;
    (server, objects, controller)
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_pods_are_counted_and_others_are_reported_missing() {
    let (_server, objects, controller) = start("ready").await;
    let object = objects.deploy("x", IMAGE, 2).await;
    let pods = objects.all_alive(&object, 2).await;
    objects.pods_not_ready("x", 0, 2).await;
    objects.set_pod_status(&pods[0].name_any(), running(true)).await;
    objects.pods_not_ready("x", 1, 1).await;
    objects.set_pod_status(&pods[1].name_any(), running(true)).await;
    objects.all_pods_ready("x", 2).await;
    objects.set_pod_status(&pods[0].name_any(), running(false)).await;
    objects.pods_not_ready("x", 1, 1).await;
    assert_eq!(objects.pods_of(&object).await.len(), 2, "one that is not ready is not replaced");

    objects.want("x", json!({ "replicas": 1 })).await;
    objects.all_pods_ready("x", 1).await;
    let left = objects.all_alive(&object, 1).await;
    assert_eq!(left[0].name_any(), pods[1].name_any(), "the one that was not ready goes first");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_and_evicted_pods_are_replaced_and_kept() {
    let (_server, objects, controller) = start("failed").await;
    let object = objects.deploy("x", IMAGE, 3).await;
    let pods = objects.all_alive(&object, 3).await;
    let [failed, evicted, good] = [0, 1, 2].map(|n| pods[n].name_any());
    objects.set_pod_status(&good, running(true)).await;
    objects.set_pod_status(&failed, json!({ "phase": "Failed" })).await;
    objects.set_pod_status(&evicted, json!({ "phase": "Failed", "reason": "Evicted" })).await;
    let alive = objects.all_alive(&object, 3).await;
    objects.pods_not_ready("x", 1, 2).await;
    assert!(alive.iter().any(|pod| pod.name_any() == good));
    assert_eq!(objects.pods_of(&object).await.len(), 5, "what failed is still there");

    objects.want("x", json!({ "replicas": 1 })).await;
    objects.all_pods_ready("x", 1).await;
    let left = objects.all_alive(&object, 1).await;
    assert_eq!(left[0].name_any(), good, "the ready one stays");
    assert!(objects.pod(&failed).await.is_some() && objects.pod(&evicted).await.is_some());
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_being_deleted_does_not_count_and_one_deleted_by_hand_is_replaced() {
    let (_server, objects, controller) = start("going").await;
    let object = objects.deploy("x", IMAGE, 2).await;
    let pods = objects.all_alive(&object, 2).await;
    let [lingers, goes] = [pods[0].name_any(), pods[1].name_any()];
    super::bind(&objects, &pods[0]).await; // so that it goes gracefully, and nobody confirms it
    for name in [&lingers, &goes] {
        objects.pods().delete(name, &DeleteParams::default()).await.expect("the deletion is accepted");
    }
    let alive = objects.all_alive(&object, 2).await;
    assert!(alive.iter().all(|pod| pod.name_any() != lingers && pod.name_any() != goes));
    let going = objects.pod(&lingers).await.expect("it lingers");
    assert!(going.metadata.deletion_timestamp.is_some());
    objects.delete_pod_now(&lingers).await;
    objects.pods_not_ready("x", 0, 2).await;
    assert_eq!(objects.pods_of(&object).await.len(), 2);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_image_replaces_the_pods() {
    let (_server, objects, controller) = start("image").await;
    let object = objects.deploy("x", IMAGE, 3).await;
    let before = objects.all_alive(&object, 3).await;
    objects.want("x", json!({ "image": "registry.k8s.io/pause:3.9" })).await;
    eventually("three pods of the new image", SOON, async || {
        let alive = objects.alive(&object).await;
        let new = alive.iter().filter(|pod| {
            pod.spec.as_ref().and_then(|spec| spec.containers[0].image.as_deref())
                == Some("registry.k8s.io/pause:3.9")
        });
        (alive.len() == 3 && new.count() == 3).then_some(())
    })
    .await;
    for pod in before {
        assert!(objects.pod(&pod.name_any()).await.is_none(), "an old pod is still there");
    }
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_another_object_controls_are_left_alone_and_do_not_count() {
    let (_server, objects, controller) = start("foreign").await;
    let other = objects.create_service("other").await; // any object may be a controller
    let mut pod = labelled("theirs", "x", IMAGE);
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Service", "name": "other", "uid": other.uid(), "controller": true,
    }]);
    let theirs = objects.create_pod(pod).await;
    let object = objects.deploy("x", IMAGE, 1).await;
    objects.all_alive(&object, 1).await;
    objects.set_pod_status("theirs", running(true)).await;
    objects.pods_not_ready("x", 0, 1).await;
    objects.want("x", json!({ "replicas": 0 })).await;
    objects.all_alive(&object, 0).await;
    objects.all_pods_ready("x", 0).await;
    let now = objects.pod("theirs").await.expect("it is still there");
    assert_eq!(now.metadata.owner_references, theirs.metadata.owner_references);
    assert_eq!(now.metadata.deletion_timestamp, None);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_a_controller_are_adopted_and_those_whose_label_changes_are_released() {
    let server = Server::shared().await;
    let objects = server.objects("adopted").await;
    // Created before the controller starts, because the order of events from two watches is not fixed.
    objects.create_pod(labelled("early", "x", IMAGE)).await;
    objects.create_pod(labelled("elsewhere", "y", IMAGE)).await;
    let mut helped = labelled("helped", "x", IMAGE);
    helped["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "beside", "uid": "b", // an owner, but no controller
    }]);
    objects.create_pod(helped).await;
    let controller = process::controller(server.kubeconfig()).alone().within(&objects.namespace).spawn();
    controller.ready().await;
    let object = objects.deploy("x", IMAGE, 3).await;
    let pods = objects.all_alive(&object, 3).await;
    let named = |name: &str| pods.iter().find(|pod| pod.name_any() == name);
    assert!(named("early").is_some() && named("elsewhere").is_none());
    let helped = named("helped").expect("it is adopted");
    assert_eq!(helped.owner_references().len(), 2, "its other owner stays");

    // One pod more than requested is adopted, and then one is deleted.
    objects.create_pod(labelled("late", "x", IMAGE)).await;
    objects.adopted_and_down_to("late", &object, 3).await;

    let kept = objects.alive(&object).await[0].name_any();
    objects.relabel_pod(&kept, "somebody").await;
    eventually("it is released", SOON, async || {
        let pod = objects.pod(&kept).await?;
        (!is_controlled_by(&pod, &object)).then_some(())
    })
    .await;
    objects.all_alive(&object, 3).await;
    assert!(objects.pod(&kept).await.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()));
    controller.stop().await;
}
