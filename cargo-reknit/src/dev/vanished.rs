//! Objects that `config/` no longer has.

use anyhow::{Context, Result};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject},
    core::{GroupVersionKind, TypeMeta},
};
use serde_json::Value;

use super::manifests;

/// The groups whose objects give rights, or have the API server call a webhook or evaluate a policy.
const WITHDRAWN: [&str; 2] = ["rbac.authorization.k8s.io", "admissionregistration.k8s.io"];

/// Deletes an object that gave rights, or that acted on the requests of others: a cluster to which only `config/` is applied has
/// none of that. Other objects stay, since they may hold what the user still wants to look at. Returns true if it deleted the
/// object.
pub(crate) async fn withdraw(client: &Client, object: &Value) -> Result<bool> {
    let [group, kind, namespace, name] = manifests::identity(object);
    if !WITHDRAWN.contains(&&*group) {
        return Ok(false);
    }
    let api_version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let types = TypeMeta { api_version, kind: kind.clone() };
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let api: Api<DynamicObject> = match &*kind {
        "Role" | "RoleBinding" => Api::namespaced_with(client.clone(), &namespace, &resource),
        _ => Api::all_with(client.clone(), &resource),
    };
    match api.delete(&name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
        deleted => {
            deleted.with_context(|| format!("cannot delete {kind} {name}, which config/ no longer has"))?;
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{
        core::v1::ConfigMap,
        rbac::v1::{ClusterRole, RoleBinding},
    };
    use reknit_testing::ApiServer;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn only_objects_that_give_rights_or_call_webhooks_are_deleted() {
        let object = |api_version: &str, kind: &str, namespace: Option<&str>| {
            let metadata = json!({"name": "x", "namespace": namespace});
            json!({"apiVersion": api_version, "kind": kind, "metadata": metadata})
        };
        let rbac = "rbac.authorization.k8s.io/v1";
        let map = object("v1", "ConfigMap", Some("shop"));
        let mut binding = object(rbac, "RoleBinding", Some("shop"));
        binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"});
        let role = object(rbac, "ClusterRole", None);
        let server = ApiServer::new();
        server.insert(&serde_json::from_value::<ConfigMap>(map.clone()).unwrap());
        server.insert(&serde_json::from_value::<RoleBinding>(binding.clone()).unwrap());
        server.insert(&serde_json::from_value::<ClusterRole>(role.clone()).unwrap());
        let client = server.client();
        for (object, expected) in [(&map, false), (&binding, true), (&role, true), (&role, false)] {
            assert_eq!(withdraw(&client, object).await.unwrap(), expected, "{object}");
        }
        assert!(server.object::<ConfigMap>(Some("shop"), "x").is_some());
        assert!(server.object::<RoleBinding>(Some("shop"), "x").is_none());
        assert!(server.object::<ClusterRole>(None, "x").is_none());
    }
}
