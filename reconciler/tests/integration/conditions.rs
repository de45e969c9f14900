//! Conditions in the schema of a Kind, on a real API server.

use std::fmt::Debug;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Api, CustomResource, CustomResourceExt, Resource,
    api::{Patch, PatchParams, PostParams},
};
use reknit_apis::{DuckStatus, StatusConditions, kind};
use reknit_testing::ControlPlane;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::Fixture;

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "conditions.reknit.dev", version = "v1", kind = "Socket", namespaced, status = "DuckStatus")]
struct SocketSpec {}

kind!(Socket { status: DuckStatus, conditions: knative() });

/// A Kind with Kubernetes' own conditions.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "conditions.reknit.dev", version = "v1", kind = "Outlet", namespaced, status = "OutletStatus")]
struct OutletSpec {}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct OutletStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

kind!(Outlet { status: OutletStatus, conditions: metav1(conditions) });

/// Creates an object, and applies one condition of it without force as each of two field managers. Returns the result.
async fn apply_two_conditions<K>(object: K, fields: &Value) -> K
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + CustomResourceExt
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<K>().await.unwrap();
    let fixture = Fixture::new("conditions").await;
    let objects: Api<K> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    objects.create(&PostParams::default(), &object).await.unwrap();
    for (manager, kind) in [("electrician", "Wired"), ("painter", "Painted")] {
        let mut condition = fields.clone();
        condition["type"] = json!(kind);
        condition["status"] = json!("True");
        let (api_version, kind) = (K::api_version(&()), K::kind(&()));
        let status = json!({"conditions": [condition]});
        let patch = Patch::Apply(json!({"apiVersion": api_version, "kind": kind, "status": status}));
        objects.patch_status("x", &PatchParams::apply(manager), &patch).await.unwrap();
    }
    objects.get("x").await.unwrap()
}

#[tokio::test]
async fn the_api_server_refuses_a_condition_of_kubernetes_without_reason() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<Outlet>().await.unwrap();
    let fixture = Fixture::new("conditions").await;
    let outlets: Api<Outlet> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    outlets.create(&PostParams::default(), &Outlet::new("x", OutletSpec {})).await.unwrap();
    let set = async |condition: &Value| {
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        outlets.patch_status("x", &PatchParams::default(), &patch).await
    };
    let mut condition = json!({
        "type": "Wired", "status": "True", "message": "", "lastTransitionTime": "2026-11-25T10:00:00Z",
    });
    let kube::Error::Api(refused) = set(&condition).await.unwrap_err() else { panic!("another error") };
    assert_eq!((refused.code, &*refused.reason), (422, "Invalid"));
    assert!(refused.message.contains("status.conditions[0].reason: Required value"), "{}", refused.message);
    condition["reason"] = json!("Done");
    set(&condition).await.unwrap();
}

#[tokio::test]
async fn two_field_managers_apply_different_conditions_of_knative() {
    let socket = apply_two_conditions(Socket::new("x", SocketSpec {}), &json!({})).await;
    let status = socket.status.unwrap();
    assert!(status.condition("Wired").is_some() && status.condition("Painted").is_some(), "{status:?}");
}

#[tokio::test]
async fn two_field_managers_apply_different_conditions_of_kubernetes() {
    let required = json!({"reason": "Done", "message": "", "lastTransitionTime": "2026-11-25T10:00:00Z"});
    let outlet = apply_two_conditions(Outlet::new("x", OutletSpec {}), &required).await;
    let conditions = outlet.status.unwrap().conditions;
    assert!(conditions.is_true("Wired") && conditions.is_true("Painted"), "{conditions:?}");
}
