//! Conditions in the schema of a Kind, on a real API server.

use kube::{
    Api, CustomResource,
    api::{Patch, PatchParams, PostParams},
};
use reknit_apis::{DuckStatus, kind};
use reknit_testing::ControlPlane;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Fixture;

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "conditions.reknit.dev", version = "v1", kind = "Socket", namespaced, status = "DuckStatus")]
struct SocketSpec {}

kind!(Socket { status: DuckStatus, conditions: knative() });

/// Sets one condition by server-side apply without force, as a field manager of this name.
async fn apply_condition(sockets: &Api<Socket>, manager: &str, kind: &str) -> Result<Socket, kube::Error> {
    let status = json!({"conditions": [{"type": kind, "status": "True"}]});
    let patch: Patch<Value> =
        Patch::Apply(json!({"apiVersion": "conditions.reknit.dev/v1", "kind": "Socket", "status": status}));
    sockets.patch_status("x", &PatchParams::apply(manager), &patch).await
}

#[tokio::test]
async fn two_field_managers_set_different_conditions() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<Socket>().await.unwrap();
    let fixture = Fixture::new("conditions").await;
    let sockets = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    sockets.create(&PostParams::default(), &Socket::new("x", SocketSpec {})).await.unwrap();
    apply_condition(&sockets, "electrician", "Wired").await.unwrap();
    let socket = apply_condition(&sockets, "painter", "Painted").await.unwrap();
    let status = socket.status.unwrap();
    assert!(status.condition("Wired").is_some() && status.condition("Painted").is_some(), "{status:?}");
}
