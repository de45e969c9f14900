//! SimpleDeployments and their pods.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit::testing::eventually;
use samples_apis::{POD_OWNER, SimpleDeployment, SimpleDeploymentSpec};
use serde_json::{Value, json};

use super::{objects::Objects, wait::SOON};

impl Objects {
    pub(crate) fn deployments(&self) -> Api<SimpleDeployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn deploy(&self, name: &str, image: &str, replicas: i32) -> SimpleDeployment {
        let object = SimpleDeployment::new(name, SimpleDeploymentSpec { image: image.into(), replicas });
        let created = self.deployments().create(&PostParams::default(), &object).await;
        created.expect("the SimpleDeployment is created")
    }

    /// Merges the fields into the spec.
    pub(crate) async fn want(&self, name: &str, spec: Value) -> SimpleDeployment {
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

    pub(crate) async fn relabel_pod(&self, pod: &str, owner: &str) {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { POD_OWNER: owner } } }));
        self.pods().patch(pod, &PatchParams::default(), &patch).await.expect("the label is changed");
    }

    pub(crate) async fn delete_deployment(&self, name: &str) {
        self.deployments().delete(name, &DeleteParams::default()).await.expect("the deletion is accepted");
    }

    pub(crate) async fn pod(&self, name: &str) -> Option<Pod> {
        self.pods().get_opt(name).await.expect("the API server answers")
    }

    pub(crate) async fn delete_pod_now(&self, name: &str) {
        let params = DeleteParams::default().grace_period(0);
        self.pods().delete(name, &params).await.expect("the pod is deleted");
    }

    /// The pods that this object controls, in any phase.
    pub(crate) async fn pods_of(&self, object: &SimpleDeployment) -> Vec<Pod> {
        let pods = self.pods().list(&ListParams::default()).await.expect("the list");
        pods.into_iter().filter(|pod| is_controlled_by(pod, object)).collect()
    }

    /// The pods that neither ended nor are being deleted.
    pub(crate) async fn alive(&self, object: &SimpleDeployment) -> Vec<Pod> {
        self.pods_of(object).await.into_iter().filter(is_alive).collect()
    }

    /// Waits until this number of pods are alive, and returns them.
    pub(crate) async fn all_alive(&self, object: &SimpleDeployment, count: usize) -> Vec<Pod> {
        eventually(format!("{count} pods of {}", object.name_any()), SOON, async || {
            let alive = self.alive(object).await;
            if alive.len() == count { Ok(alive) } else { Err(format!("there are {}", alive.len())) }
        })
        .await
    }

    /// Waits until the object, which had `count` pods, has adopted one more and deleted one.
    pub(crate) async fn adopted_and_down_to(&self, name: &str, object: &SimpleDeployment, count: usize) {
        eventually(format!("{name} is adopted, and one goes"), SOON, async || {
            let adopted = self.pod(name).await.is_none_or(|pod| is_controlled_by(&pod, object));
            adopted && self.alive(object).await.len() == count
        })
        .await;
    }

    /// Waits until the status has observed the latest generation, with this number of ready replicas and this status,
    /// reason and message of the Ready condition.
    pub(crate) async fn says(&self, name: &str, ready_replicas: i32, ready: [&str; 3]) -> SimpleDeployment {
        eventually(format!("{name} says {ready_replicas} {ready:?}"), SOON, async || {
            let object = self.deployments().get(name).await.map_err(|error| error.to_string())?;
            let said = said(&object);
            let expected = (ready_replicas, ready.map(str::to_owned));
            if said.as_ref() == Some(&expected) { Ok(object) } else { Err(format!("{said:?}")) }
        })
        .await
    }

    /// Waits until the Ready condition reports refused pods with this text, and returns its message.
    pub(crate) async fn pods_refused(&self, name: &str, how: &str) -> String {
        eventually(format!("{name} says that pods were refused: {how}"), SOON, async || {
            let object = self.deployments().get(name).await.map_err(|error| error.to_string())?;
            match said(&object) {
                Some((_, [_, reason, message])) if reason == "FailedCreate" && message.contains(how) => {
                    Ok(message)
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until all pods of the object are ready.
    pub(crate) async fn all_pods_ready(&self, name: &str, replicas: i32) -> SimpleDeployment {
        self.says(name, replicas, ["True", "", ""]).await
    }

    /// Waits until all pods of the object are ready except for `missing` of them.
    pub(crate) async fn pods_not_ready(&self, name: &str, ready: i32, missing: i32) -> SimpleDeployment {
        self.says(name, ready, ["False", "PodsNotReady", &format!("{missing} pods are not ready yet")]).await
    }
}

fn said(object: &SimpleDeployment) -> Option<(i32, [String; 3])> {
    let status = object.status.as_ref()?;
    let ready = status.duck.condition("Ready")?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let ready = [ready.status.to_string(), text(&ready.reason), text(&ready.message)];
    (status.duck.observed_generation == object.metadata.generation).then_some((status.ready_replicas, ready))
}

pub(crate) fn is_controlled_by(pod: &Pod, object: &SimpleDeployment) -> bool {
    let owners = pod.owner_references().iter();
    owners
        .clone()
        .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == object.metadata.uid.as_ref())
}

pub(crate) fn is_alive(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Failed" | "Succeeded"))
}

/// The status of a pod whose containers run and are ready or not.
pub(crate) fn running(ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] })
}

/// A pod with this name and image whose label names this owner.
pub(crate) fn labelled(name: &str, owner: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { POD_OWNER: owner } },
        "spec": { "containers": [{ "name": "user-container", "image": image }] },
    })
}
