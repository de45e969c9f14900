//! Rules for pods: which pods count as replicas, and which pods to delete first.

use std::{cmp::Reverse, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::ResourceExt;

/// The annotation with the image for which a pod was created.
pub(super) const IMAGE: &str = "samples.knative.dev/image";

/// Returns true if the pod has not terminated and is not terminating. A failed or evicted pod is replaced, and kept for
/// inspection.
pub(super) fn is_alive(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase(pod), "Failed" | "Succeeded")
}

/// Returns true if the pod has the condition Ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = status(pod).and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns true if the pod was created for this image. Its container may have another one: if an admission webhook has replaced
/// the image by that of a mirror, a new pod would be like this one. So an image that somebody edits by hand stays, too. In a
/// pod without the annotation, one of the containers has to have the image, since other clients may have injected further ones.
pub(super) fn runs(pod: &Pod, image: &str) -> bool {
    if let Some(created_for) = pod.annotations().get(IMAGE) {
        return created_for == image;
    }
    let containers = pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
    containers.iter().any(|container| container.image.as_deref() == Some(image))
}

/// Returns the pods to delete so that `keep` remain. The order is roughly that of a ReplicaSet: pods without a node,
/// pods that are not running, pods that are not ready, and then the youngest pods.
pub(super) fn least_useful(mut pods: Vec<Arc<Pod>>, keep: usize) -> Vec<Arc<Pod>> {
    pods.sort_by_cached_key(|pod| {
        let is_scheduled = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let youngest_first = Reverse(pod.creation_timestamp());
        (is_scheduled, phase(pod) == "Running", is_ready(pod), youngest_first, pod.name_any())
    });
    pods.truncate(pods.len().saturating_sub(keep));
    pods
}

fn phase(pod: &Pod) -> &str {
    status(pod).and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn status(pod: &Pod) -> Option<&PodStatus> {
    pod.status.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: Option<&str>, phase: &str, ready: &str, second: u8) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn the_least_useful_pods_are_deleted_first() {
        let pods = vec![
            pod("old", Some("n"), "Running", "True", 1),
            pod("young", Some("n"), "Running", "True", 9),
            pod("unready", Some("n"), "Running", "False", 1),
            pod("starting", Some("n"), "Pending", "False", 1),
            pod("waiting", None, "Pending", "False", 1),
        ];
        let deleted = least_useful(pods.clone(), 0);
        let order: Vec<_> = deleted.iter().map(|pod| pod.name_any()).collect();
        assert_eq!(order, ["waiting", "starting", "unready", "young", "old"]);
        assert_eq!(least_useful(pods.clone(), 4)[0].name_any(), "waiting");
        assert!(least_useful(pods, 6).is_empty());
    }

    #[test]
    fn an_injected_container_does_not_change_the_image_of_a_pod() {
        let pod = json!({"spec": {"containers": [
            {"name": "mesh", "image": "mesh:1"}, {"name": "user-container", "image": "nginx"},
        ]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert!(runs(&pod, "nginx") && !runs(&pod, "nginx:2") && !runs(&Pod::default(), "nginx"));
    }

    #[test]
    fn a_pod_whose_image_an_admission_webhook_has_replaced_is_not_outdated() {
        let pod = json!({
            "metadata": {"annotations": {IMAGE: "nginx"}},
            "spec": {"containers": [{"name": "user-container", "image": "mirror.example.com/nginx"}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert!(runs(&pod, "nginx") && !runs(&pod, "nginx:2") && !runs(&pod, "mirror.example.com/nginx"));
    }
}
