//! Nodes that run pods, and the controllers of workloads.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{ControlPlane, Error, apply::FIELD_MANAGER};

impl ControlPlane {
    /// Adds nodes, named `node-1` and so on, until there are at least `count`. Each has room for any number of pods.
    /// Returns once the nodes are Ready. The first call takes about four seconds, and 250 MB of memory.
    ///
    /// From then on these run: Kubernetes' own controllers of workloads (Deployments, ReplicaSets, StatefulSets,
    /// DaemonSets, Jobs and CronJobs), of HorizontalPodAutoscalers, of EndpointSlices, of namespaces and of aggregated
    /// ClusterRoles, the garbage collector and the scheduler. [kwok](https://kwok.sigs.k8s.io) simulates the kubelets: no
    /// container runs, but a scheduled pod becomes Running and Ready and gets an address, a pod of a Job succeeds, and a
    /// deleted or evicted pod goes away.
    ///
    /// To make a pod fail, set the phase `Failed` in its status: kwok leaves a pod in its final phase. A pod with a
    /// `nodeSelector` that fits no node, or with a scheduling gate, never starts. Controllers of volumes, quotas,
    /// service accounts and disruption budgets do not run.
    ///
    /// A HorizontalPodAutoscaler scales its workload into the range from `minReplicas` to `maxReplicas`, within the 15
    /// seconds of its period. There are no metrics, so it does not scale within the range.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use k8s_openapi::api::apps::v1::Deployment;
    /// use kube::Api;
    /// use reknit_testing::{ControlPlane, eventually};
    ///
    /// # async fn test() -> Result<(), Box<dyn std::error::Error>> {
    /// let plane = ControlPlane::shared().await?;
    /// plane.nodes(1).await?;
    /// plane.apply_path("config/deployment.yaml").await?;
    /// let deployments: Api<Deployment> = Api::default_namespaced(plane.client()?);
    /// eventually("two replicas", Duration::from_secs(30), async || {
    ///     let deployment = deployments.get("web").await.ok()?;
    ///     (deployment.status?.available_replicas == Some(2)).then_some(())
    /// })
    /// .await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if kube-controller-manager, kube-scheduler or kwok is missing, as in the official envtest archives, and
    /// names the script that installs them. Fails if one of them exits, with the end of its log.
    pub async fn nodes(&self, count: usize) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client()?);
        let names: Vec<_> = (1..=count).map(|number| format!("node-{number}")).collect();
        for name in &names {
            apply_node(&nodes, name).await?;
        }
        self.processes.start_nodes(&self.kubeconfig, || check_nodes(&nodes, &names)).await
    }
}

async fn apply_node(nodes: &Api<Node>, name: &str) -> Result<(), Error> {
    let labels = json!({"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    let applied = nodes.patch(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(node)).await;
    applied.map(drop).map_err(Error::cannot(format!("apply Node {name}")))
}

async fn check_nodes(nodes: &Api<Node>, names: &[String]) -> Result<(), String> {
    for name in names {
        check_node(&nodes.get(name).await.map_err(|error| error.to_string())?)?;
    }
    Ok(())
}

/// Checks that the scheduler can assign pods to the node: that it is Ready and has no taints.
fn check_node(node: &Node) -> Result<(), String> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready =
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).count();
    let observation = || format!("{}: {:?}, {:?}", node.name_any(), node.spec, node.status);
    (is_ready && taints == 0).then_some(()).ok_or_else(observation)
}
