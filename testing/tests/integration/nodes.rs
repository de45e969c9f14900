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

type TestResult = Result<(), Box<dyn Error>>;

const SOON: Duration = Duration::from_secs(60);

/// Returns the control plane that these tests share. It is not [`ControlPlane::shared`], because other tests rely on no
/// controllers running there.
async fn shared_plane() -> Result<&'static ControlPlane, reknit_testing::Error> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    PLANE.get_or_try_init(ControlPlane::start).await
}

/// A Deployment `web` of two pods, in a namespace of its own.
struct Web {
    namespace: String,
    deployments: Api<Deployment>,
    pods: Api<Pod>,
}

impl Web {
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
            namespace,
        })
    }

    async fn wait_until_available(&self) {
        eventually("two available replicas", SOON, async || {
            let available = self
                .deployments
                .get("web")
                .await
                .unwrap()
                .status
                .and_then(|status| status.available_replicas);
            if available == Some(2) { Ok(()) } else { Err(format!("{available:?}")) }
        })
        .await;
    }

    async fn pods(&self) -> Vec<Pod> {
        self.pods.list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until two pods run and neither has this name.
    async fn wait_until_replaced(&self, old: &str) {
        eventually(format!("two running pods other than {old}"), SOON, async || {
            let running: Vec<_> = self.pods().await.into_iter().filter(is_running).collect();
            match running.len() == 2 && running.iter().all(|pod| pod.name_any() != old) {
                true => Ok(()),
                false => Err(format!("{:?}", running.iter().map(Pod::name_any).collect::<Vec<_>>())),
            }
        })
        .await;
    }
}

fn is_running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| status.phase.as_deref() == Some("Running") && status.pod_ip.is_some())
}

#[tokio::test]
async fn a_deployment_becomes_available_and_its_deletion_deletes_its_pods() -> TestResult {
    let web = Web::new(shared_plane().await?).await?;
    web.wait_until_available().await;
    let pods = web.pods().await;
    assert_eq!(pods.iter().filter(|pod| is_running(pod)).count(), 2, "{pods:?}");
    web.deployments.delete("web", &DeleteParams::default()).await?;
    eventually("the deletion of its pods", SOON, async || web.pods().await.is_empty()).await;
    Ok(())
}

#[tokio::test]
async fn a_failed_pod_stays_failed_and_is_replaced() -> TestResult {
    let web = Web::new(shared_plane().await?).await?;
    web.wait_until_available().await;
    let failing = web.pods().await[0].name_any();
    let failed = json!({"status": {"phase": "Failed", "reason": "Evicted"}});
    web.pods.patch_status(&failing, &PatchParams::default(), &Patch::Merge(failed)).await?;
    web.wait_until_replaced(&failing).await;
    let status = web.pods.get(&failing).await?.status.unwrap_or_default();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    Ok(())
}

#[tokio::test]
async fn an_evicted_pod_is_deleted_and_replaced() -> TestResult {
    let web = Web::new(shared_plane().await?).await?;
    web.wait_until_available().await;
    let evicted = web.pods().await[0].name_any();
    web.pods.evict(&evicted, &EvictParams::default()).await?;
    web.wait_until_replaced(&evicted).await;
    assert!(web.pods.get_opt(&evicted).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_pod_that_fits_no_node_stays_pending() -> TestResult {
    let web = Web::new(shared_plane().await?).await?;
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "stuck"},
        "spec": {"nodeSelector": {"no": "where"}, "containers": [{"name": "a", "image": "a"}]},
    }))?;
    web.pods.create(&Default::default(), &pod).await?;
    eventually("the condition Unschedulable", SOON, async || {
        let status = web.pods.get("stuck").await.unwrap().status.unwrap_or_default();
        let conditions = status.conditions.iter().flatten();
        let is_unschedulable =
            conditions.into_iter().any(|condition| condition.reason.as_deref() == Some("Unschedulable"));
        is_unschedulable && status.phase.as_deref() == Some("Pending")
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn an_autoscaler_scales_a_deployment_to_its_minimum() -> TestResult {
    let plane = shared_plane().await?;
    let web = Web::new(plane).await?;
    let namespace = &web.namespace;
    plane
        .apply_yaml(&format!(
            "apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: web, namespace: {namespace}}}
spec: {{minReplicas: 4, maxReplicas: 9, scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}}}
"
        ))
        .await?;
    eventually("four running pods", SOON, async || {
        let running = web.pods().await.iter().filter(|pod| is_running(pod)).count();
        if running == 4 { Ok(()) } else { Err(format!("{running}")) }
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn nodes_can_be_requested_repeatedly_and_survive_a_restart() -> TestResult {
    let plane = ControlPlane::start().await?;
    plane.nodes(2).await?;
    plane.nodes(1).await?;
    let nodes: Api<Node> = Api::all(plane.client()?);
    assert_eq!(nodes.list(&ListParams::default()).await?.items.len(), 2);
    plane.restart().await?;
    Web::new(&plane).await?.wait_until_available().await;
    Ok(())
}
