//! Deployments and pods on a control plane with nodes.

use std::{error::Error, time::Duration};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;
use tokio::sync::OnceCell;

type Outcome = Result<(), Box<dyn Error>>;

const SOON: Duration = Duration::from_secs(60);

/// Returns the control plane of these tests. The tests that share the other one rely on no controllers running there.
async fn with_nodes() -> Result<&'static ControlPlane, reknit_testing::Error> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    PLANE.get_or_try_init(ControlPlane::start).await
}

/// A namespace with a Deployment of two pods.
struct Place {
    deployments: Api<Deployment>,
    pods: Api<Pod>,
}

impl Place {
    async fn new(plane: &ControlPlane) -> Result<Self, Box<dyn Error>> {
        plane.nodes(1).await?;
        let namespace = plane.namespace("nodes").await?;
        let deployment = format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: {namespace}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{containers: [{{name: web, image: nowhere.example/web}}]}}
"
        );
        plane.apply_yaml(&deployment).await?;
        let client = plane.client()?;
        Ok(Self {
            deployments: Api::namespaced(client.clone(), &namespace),
            pods: Api::namespaced(client, &namespace),
        })
    }

    async fn available(&self) {
        eventually("two available replicas", SOON, async || {
            let available =
                self.deployments.get("web").await.unwrap().status.and_then(|s| s.available_replicas);
            if available == Some(2) { Ok(()) } else { Err(format!("{available:?}")) }
        })
        .await;
    }

    async fn pods(&self) -> Vec<Pod> {
        self.pods.list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until two pods run and neither has this name.
    async fn replaced(&self, gone: &str) {
        eventually("two pods other than that one", SOON, async || {
            let running: Vec<_> = self.pods().await.into_iter().filter(runs).collect();
            match running.len() == 2 && running.iter().all(|pod| pod.name_any() != gone) {
                true => Ok(()),
                false => Err(format!("{:?}", running.iter().map(Pod::name_any).collect::<Vec<_>>())),
            }
        })
        .await;
    }
}

fn runs(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| status.phase.as_deref() == Some("Running") && status.pod_ip.is_some())
}

#[tokio::test]
async fn a_deployment_becomes_available_and_its_pods_go_with_it() -> Outcome {
    let place = Place::new(with_nodes().await?).await?;
    place.available().await;
    let pods = place.pods().await;
    assert_eq!(pods.iter().filter(|pod| runs(pod)).count(), 2, "{pods:?}");
    place.deployments.delete("web", &DeleteParams::default()).await?;
    eventually("the end of its pods", SOON, async || place.pods().await.is_empty()).await;
    Ok(())
}

#[tokio::test]
async fn a_pod_that_fails_stays_failed_and_is_replaced() -> Outcome {
    let place = Place::new(with_nodes().await?).await?;
    place.available().await;
    let failing = place.pods().await[0].name_any();
    let failed = json!({"status": {"phase": "Failed", "reason": "Evicted"}});
    place.pods.patch_status(&failing, &PatchParams::default(), &Patch::Merge(failed)).await?;
    place.replaced(&failing).await;
    let status = place.pods.get(&failing).await?.status.unwrap_or_default();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    Ok(())
}

#[tokio::test]
async fn a_pod_that_is_evicted_goes_and_is_replaced() -> Outcome {
    let place = Place::new(with_nodes().await?).await?;
    place.available().await;
    let evicted = place.pods().await[0].name_any();
    place.pods.evict(&evicted, &EvictParams::default()).await?;
    place.replaced(&evicted).await;
    assert!(place.pods.get_opt(&evicted).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_pod_that_no_node_fits_never_starts() -> Outcome {
    let place = Place::new(with_nodes().await?).await?;
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "stuck"},
        "spec": {"nodeSelector": {"no": "where"}, "containers": [{"name": "a", "image": "a"}]},
    }))?;
    place.pods.create(&Default::default(), &pod).await?;
    eventually("the scheduler's refusal", SOON, async || {
        let status = place.pods.get("stuck").await.unwrap().status.unwrap_or_default();
        let conditions = status.conditions.iter().flatten();
        let refused = conditions.into_iter().any(|one| one.reason.as_deref() == Some("Unschedulable"));
        refused && status.phase.as_deref() == Some("Pending")
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn nodes_can_be_requested_repeatedly_and_survive_a_restart() -> Outcome {
    let plane = ControlPlane::start().await?;
    plane.nodes(2).await?;
    plane.nodes(1).await?;
    let nodes: Api<Node> = Api::all(plane.client()?);
    assert_eq!(nodes.list(&ListParams::default()).await?.items.len(), 2);
    plane.restart().await?;
    Place::new(&plane).await?.available().await;
    Ok(())
}
