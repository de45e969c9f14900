//! Stubs of what a cluster does: pods become ready, Jobs finish, Deployments roll out.
//!
//! Each stub is a function on a [`Cluster`], which is called after each change of an object. Write others in the same
//! way.

use std::time::Duration;

use k8s_openapi::{
    api::{apps::v1::Deployment, batch::v1::Job, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::{Resource, core::ObjectMeta as Meta};
use serde_json::json;

use crate::cluster::Cluster;

/// Makes each pod `Running` and ready this long after its creation.
pub fn pods_get_ready(after: Duration) -> impl Fn(&mut Cluster) + Send + Sync + 'static {
    move |cluster| {
        for pod in cluster.list::<Pod>() {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase.is_some_and(|phase| phase != "Pending") || !is_due(cluster, pod.meta(), after) {
                continue;
            }
            let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": cluster.now()});
            let status = json!({"phase": "Running", "conditions": [ready], "startTime": cluster.now()});
            cluster.merge_status::<Pod>(&key(pod.meta()), &status);
        }
    }
}

/// Completes each Job this long after its creation.
pub fn jobs_complete(after: Duration) -> impl Fn(&mut Cluster) + Send + Sync + 'static {
    move |cluster| {
        for job in cluster.list::<Job>() {
            let is_complete = job.status.as_ref().is_some_and(|status| status.completion_time.is_some());
            if is_complete || !is_due(cluster, job.meta(), after) {
                continue;
            }
            let now = cluster.now();
            let complete = json!({"type": "Complete", "status": "True", "lastTransitionTime": now});
            let start = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
            let status =
                json!({"succeeded": 1, "startTime": start, "completionTime": now, "conditions": [complete]});
            cluster.merge_status::<Job>(&key(job.meta()), &status);
        }
    }
}

/// Makes all replicas of each Deployment ready this long after its creation, and at once after a later change.
pub fn deployments_roll_out(after: Duration) -> impl Fn(&mut Cluster) + Send + Sync + 'static {
    move |cluster| {
        for deployment in cluster.list::<Deployment>() {
            let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            let generation = deployment.metadata.generation;
            let status = deployment.status.as_ref();
            let is_up_to_date = status.is_some_and(|status| {
                status.observed_generation == generation && status.ready_replicas.unwrap_or(0) == replicas
            });
            if is_up_to_date || !is_due(cluster, deployment.meta(), after) {
                continue;
            }
            let available = json!({"type": "Available", "status": "True", "lastTransitionTime": cluster.now(),
                "reason": "MinimumReplicasAvailable", "message": "Deployment has minimum availability."});
            let status = json!({"observedGeneration": generation, "replicas": replicas, "readyReplicas": replicas,
                "availableReplicas": replicas, "updatedReplicas": replicas, "conditions": [available]});
            cluster.merge_status::<Deployment>(&key(deployment.meta()), &status);
        }
    }
}

/// Returns true if an object exists for this long. Otherwise the stubs are called when it does.
fn is_due(cluster: &mut Cluster, meta: &Meta, after: Duration) -> bool {
    let created = meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let age: Duration = cluster.now().duration_since(created).try_into().unwrap_or_default();
    if let Some(left) = after.checked_sub(age).filter(|left| !left.is_zero()) {
        cluster.wake_after(left);
        return false;
    }
    true
}

fn key(meta: &ObjectMeta) -> String {
    let name = meta.name.as_deref().unwrap_or_default();
    meta.namespace.as_ref().map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}
