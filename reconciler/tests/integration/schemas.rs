//! Generated schemas with embedded core types, on a real API server.

use k8s_openapi::{
    api::core::v1::{Container, PodTemplateSpec, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, CustomResource,
    api::{Patch, PatchParams},
};
use reknit_apis::{drop_descriptions, kind};
use reknit_testing::ControlPlane;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Fixture;

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "schemas.reknit.dev", version = "v1", kind = "Pool", namespaced, status = "PoolStatus")]
struct PoolSpec {
    #[schemars(transform = drop_descriptions)]
    template: PodTemplateSpec,
    #[serde(default)]
    service: Option<ServiceSpec>,
    #[serde(default)]
    size: u32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct PoolStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

kind!(Pool { status: PoolStatus, conditions: metav1(conditions) });

/// Applies one container without force, as a field manager of the container's name.
async fn apply_container(pools: &Api<Pool>, name: &str) -> Pool {
    let container = json!({"name": name, "image": name, "ports": [{"containerPort": 80}]});
    let spec = json!({"template": {"spec": {"containers": [container]}}, "size": 1});
    let patch: Patch<Value> = Patch::Apply(
        json!({"apiVersion": "schemas.reknit.dev/v1", "kind": "Pool", "metadata": {"name": "x"}, "spec": spec}),
    );
    pools.patch("x", &PatchParams::apply(name), &patch).await.unwrap()
}

#[tokio::test]
async fn two_field_managers_apply_different_containers_of_an_embedded_pod_template() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<Pool>().await.unwrap();
    let fixture = Fixture::new("schemas").await;
    let pools = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    apply_container(&pools, "web").await;
    let pool = apply_container(&pools, "proxy").await;
    let containers = pool.spec.template.spec.unwrap().containers;
    let names: Vec<_> = containers.iter().map(|container| &*container.name).collect();
    assert_eq!(names, ["web", "proxy"]);
    let protocol =
        |container: &Container| container.ports.iter().flatten().find_map(|port| port.protocol.clone());
    assert_eq!(protocol(&containers[0]).as_deref(), Some("TCP"));
}
