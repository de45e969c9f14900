//! Deletion of Namespaces. In a cluster a controller of Kubernetes does this, which does not run here.

use anyhow::{Context, Result};
use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams},
    discovery::{Discovery, Scope, verbs},
};
use serde_json::json;

/// Deletes the objects in Namespaces that are being deleted, and ends the deletion of those that are empty.
pub(crate) async fn finish_deletions(client: &Client) -> Result<()> {
    let namespaces = Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await?;
    let is_deleted = |namespace: &Namespace| namespace.metadata.deletion_timestamp.is_some();
    for mut namespace in namespaces.items.into_iter().filter(is_deleted) {
        let name = namespace.name_any();
        if delete_objects(client, &name)
            .await
            .with_context(|| format!("cannot empty the Namespace {name}"))?
        {
            namespace.spec.get_or_insert_default().finalizers = None;
            finalize(client, &name, &namespace)
                .await
                .with_context(|| format!("cannot finalize the Namespace {name}"))?;
        }
    }
    Ok(())
}

/// Deletes all objects in a Namespace. Returns true once there are none.
async fn delete_objects(client: &Client, namespace: &str) -> Result<bool> {
    let discovery = Discovery::new(client.clone()).run().await?;
    let resources = discovery.groups().flat_map(|group| group.recommended_resources());
    let mut is_empty = true;
    for (resource, capabilities) in resources {
        let is_deletable = capabilities.supports_operation(verbs::DELETE_COLLECTION);
        if capabilities.scope == Scope::Cluster || !is_deletable {
            continue;
        }
        let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        if !objects.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty() {
            is_empty = false;
            objects.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
        }
    }
    Ok(is_empty)
}

async fn finalize(client: &Client, name: &str, namespace: &Namespace) -> Result<()> {
    let mut body = json!(namespace);
    (body["apiVersion"], body["kind"]) = (json!("v1"), json!("Namespace"));
    let request = Request::put(format!("/api/v1/namespaces/{name}/finalize"))
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())?;
    client.request::<Namespace>(request).await?;
    Ok(())
}
