//! The requests of the comparison: every verb, on a built-in Kind, a custom resource and a cluster-scoped Kind.

mod applies;
mod controllers;
mod deletes;
mod leases;
mod metadata;
mod objects;
mod patches;
mod scopes;
mod subresources;
mod versions;
mod watches;

use serde_json::{Value, json};

use super::{TestResult, recorder::Recorder};

const CONFIG_MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const ACCOUNTS: &str = "/api/v1/namespaces/shop/serviceaccounts";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles";
const JOBS: &str = "/apis/batch/v1/namespaces/shop/jobs";
const REPLICATION_CONTROLLERS: &str = "/api/v1/namespaces/shop/replicationcontrollers";
const REPLICA_SETS: &str = "/apis/apps/v1/namespaces/shop/replicasets";
const WIDGETS: &str = "/apis/compare.reknit.dev/v1/namespaces/shop/widgets";
const GADGETS: &str = "/apis/compare.reknit.dev/v1/gadgets";
const OTHER_UID: &str = "11111111-2222-3333-4444-555555555555";

pub(crate) async fn send(server: &mut Recorder) -> TestResult {
    objects::creates(server).await?;
    objects::gets_and_lists(server).await?;
    objects::updates(server).await?;
    patches::merge_patches(server).await?;
    patches::json_patches(server).await?;
    patches::status_writes(server).await?;
    deletes::deletes(server).await?;
    deletes::finalizers(server).await?;
    applies::applies(server).await?;
    applies::applied_lists(server).await?;
    applies::dry_runs(server).await?;
    scopes::cluster_scoped(server).await?;
    scopes::lists_across_namespaces(server).await?;
    deletes::deletes_of_collections(server).await?;
    metadata::invalid_metadata(server).await?;
    versions::metadata(server).await?;
    versions::lists(server).await?;
    watches::watches(server).await?;
    leases::leases(server).await?;
    objects::encoded_names(server).await?;
    objects::escaped_selectors(server).await?;
    subresources::scales(server).await?;
    subresources::scales_of_custom_resources(server).await?;
    subresources::approvals(server).await?;
    versions::compaction(server).await?;
    controllers::namespaces(server).await
}

/// The requests whose effects controllers carry out. No other requests follow.
pub(crate) async fn send_with_controllers(server: &mut Recorder) -> TestResult {
    controllers::garbage(server).await
}

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn widget(metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Widget", "metadata": metadata, "spec": spec})
}

/// The path of an object in a collection.
fn object_path(collection: &str, name: &str) -> String {
    format!("{collection}/{name}")
}
