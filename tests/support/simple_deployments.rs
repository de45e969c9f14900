//! Methods of [`Objects`] for SimpleDeployments and their pods.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit::testing::eventually;
use reknit_samples::{POD_OWNER, SimpleDeployment, SimpleDeploymentSpec};
use serde_json::{Value, json};

use super::{objects::Objects, wait::TIMEOUT};

impl Objects {
    pub(crate) fn deployments(&self) -> Api<SimpleDeployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn create_deployment(&self, name: &str, image: &str, replicas: i32) -> SimpleDeployment {
        let object = SimpleDeployment::new(name, SimpleDeploymentSpec { image: image.into(), replicas });
        let created = self.deployments().create(&PostParams::default(), &object).await;
        created.expect("the SimpleDeployment is created")
    }

    /// Merges these fields into the spec of a SimpleDeployment.
    pub(crate) async fn patch_deployment_spec(&self, name: &str, spec: Value) -> SimpleDeployment {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let patched = self.deployments().patch(name, &PatchParams::default(), &patch).await;
        patched.expect("the spec is patched")
    }

    pub(crate) async fn create_pod(&self, pod: Value) -> Pod {
        let pod = serde_json::from_value(pod).expect("a pod");
        self.pods().create(&PostParams::default(), &pod).await.expect("the pod is created")
    }

    /// Patches the status of a pod, as a kubelet or an eviction does.
    pub(crate) async fn set_pod_status(&self, pod: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self.pods().patch_status(pod, &PatchParams::default(), &patch).await;
        patched.expect("the status of the pod is patched");
    }

    /// Changes the label that names the SimpleDeployment of a pod.
    pub(crate) async fn relabel_pod(&self, pod: &str, owner: &str) {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { POD_OWNER: owner } } }));
        self.pods().patch(pod, &PatchParams::default(), &patch).await.expect("the label is changed");
    }

    pub(crate) async fn delete_deployment(&self, name: &str) {
        self.deployments().delete(name, &DeleteParams::default()).await.expect("the deletion is accepted");
    }

    pub(crate) async fn get_pod(&self, name: &str) -> Option<Pod> {
        self.pods().get_opt(name).await.expect("the API server responds")
    }

    /// Deletes a pod without a grace period.
    pub(crate) async fn delete_pod_now(&self, name: &str) {
        let params = DeleteParams::default().grace_period(0);
        self.pods().delete(name, &params).await.expect("the pod is deleted");
    }

    /// The pods that this object controls, in any phase.
    pub(crate) async fn controlled_pods(&self, object: &SimpleDeployment) -> Vec<Pod> {
        let pods = self.pods().list(&ListParams::default()).await.expect("the list");
        pods.into_iter().filter(|pod| is_controlled_by(pod, object)).collect()
    }

    /// The pods that this object controls and that are alive: neither ended nor being deleted.
    pub(crate) async fn alive_pods(&self, object: &SimpleDeployment) -> Vec<Pod> {
        self.controlled_pods(object).await.into_iter().filter(is_alive).collect()
    }

    /// Waits until exactly `count` pods of the object are alive, and returns them.
    pub(crate) async fn wait_for_alive_pods(&self, object: &SimpleDeployment, count: usize) -> Vec<Pod> {
        eventually(format!("{count} pods of {} are alive", object.name_any()), TIMEOUT, async || {
            let alive = self.alive_pods(object).await;
            if alive.len() == count { Ok(alive) } else { Err(format!("{} are alive", alive.len())) }
        })
        .await
    }

    /// Waits until `count` pods are alive and the object controls the pod `name`, unless the scale-down has deleted
    /// that pod.
    pub(crate) async fn wait_for_adoption_and_scale_down(
        &self,
        name: &str,
        object: &SimpleDeployment,
        count: usize,
    ) {
        eventually(format!("{name} is adopted, and one pod is deleted"), TIMEOUT, async || {
            let adopted = self.get_pod(name).await.is_none_or(|pod| is_controlled_by(&pod, object));
            adopted && self.alive_pods(object).await.len() == count
        })
        .await;
    }

    /// Waits until the controller has observed the latest generation, and the status has this number of ready replicas.
    /// `ready` is the expected status, reason and message of the Ready condition.
    async fn wait_for_deployment_status(
        &self,
        name: &str,
        ready_replicas: i32,
        ready: [&str; 3],
    ) -> SimpleDeployment {
        eventually(format!("the status of {name} is {ready_replicas} {ready:?}"), TIMEOUT, async || {
            let object = self.deployments().get(name).await.map_err(|error| error.to_string())?;
            let status = observed_status(&object);
            let expected = (ready_replicas, ready.map(str::to_owned));
            if status.as_ref() == Some(&expected) { Ok(object) } else { Err(format!("{status:?}")) }
        })
        .await
    }

    /// Waits until the Ready condition reports that the API server refused pods, with a message that contains `text`.
    /// Returns the message.
    pub(crate) async fn wait_for_refused_pods(&self, name: &str, text: &str) -> String {
        eventually(format!("the status of {name} reports refused pods: {text}"), TIMEOUT, async || {
            let object = self.deployments().get(name).await.map_err(|error| error.to_string())?;
            match observed_status(&object) {
                Some((_, [_, reason, message])) if reason == "FailedCreate" && message.contains(text) => {
                    Ok(message)
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until the Ready condition is True with this number of ready replicas.
    pub(crate) async fn wait_for_ready_pods(&self, name: &str, replicas: i32) -> SimpleDeployment {
        self.wait_for_deployment_status(name, replicas, ["True", "", ""]).await
    }

    /// Waits until the status reports `ready` ready pods and `unready` unready pods.
    pub(crate) async fn wait_for_ready_and_unready_pods(
        &self,
        name: &str,
        ready: i32,
        unready: i32,
    ) -> SimpleDeployment {
        let message = format!("{unready} pods are not ready yet");
        self.wait_for_deployment_status(name, ready, ["False", "PodsNotReady", &message]).await
    }
}

/// The number of ready replicas, and the status, reason and message of the Ready condition. `None` if there is no Ready
/// condition, or if the controller has not observed the latest generation.
fn observed_status(object: &SimpleDeployment) -> Option<(i32, [String; 3])> {
    let status = object.status.as_ref()?;
    let ready = status.duck.condition("Ready")?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let ready = [ready.status.to_string(), text(&ready.reason), text(&ready.message)];
    (status.duck.observed_generation == object.metadata.generation).then_some((status.ready_replicas, ready))
}

pub(crate) fn is_controlled_by(pod: &Pod, object: &SimpleDeployment) -> bool {
    pod.owner_references()
        .iter()
        .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == object.metadata.uid.as_ref())
}

pub(crate) fn is_alive(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Failed" | "Succeeded"))
}

/// The status of a running pod that is ready.
pub(crate) fn ready_pod_status() -> Value {
    json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] })
}

/// The status of a running pod that is not ready.
pub(crate) fn unready_pod_status() -> Value {
    json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "False" }] })
}

/// A pod with this name and image, and the label by which the SimpleDeployment `owner` adopts it.
pub(crate) fn labelled_pod(name: &str, owner: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { POD_OWNER: owner } },
        "spec": { "containers": [{ "name": "user-container", "image": image }] },
    })
}
