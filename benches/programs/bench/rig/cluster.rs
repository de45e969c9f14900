//! The API server and its objects.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use futures::{TryStreamExt, stream};
use http::Request;
use kube::Client;
use reknit::testing::ControlPlane;
use reknit_benches::{addressable_service, ready_status, service};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{Result, rig::watch::Watch};

const CRD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/300-crds.yaml");
const ADDRESSABLE_SERVICES: &str = "/apis/samples.knative.dev/v1alpha1/addressableservices";
const SERVICES: &str = "/api/v1/services";
/// The number of concurrent requests with which this program prepares a measurement.
const CONCURRENCY: usize = 32;
const NAMESPACES: usize = 10;

/// A real API server with only the objects of the measurement.
pub(crate) struct Cluster {
    plane: ControlPlane,
    client: Client,
}

/// The fields of an AddressableService that are read.
#[derive(Deserialize)]
pub(crate) struct ListedObject {
    metadata: Metadata,
    status: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    namespace: String,
    name: String,
    resource_version: String,
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Vec<ListedObject>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

impl ListedObject {
    fn status_path(&self) -> String {
        let Metadata { namespace, name, .. } = &self.metadata;
        format!("/apis/samples.knative.dev/v1alpha1/namespaces/{namespace}/addressableservices/{name}/status")
    }
}

impl Cluster {
    pub(crate) async fn start() -> Result<Self> {
        let plane = ControlPlane::start().await?;
        plane.apply_path(CRD).await?;
        let client = plane.client()?;
        Ok(Self { plane, client })
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        self.plane.kubeconfig()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.plane.folder()
    }

    pub(crate) async fn server_version(&self) -> Result<String> {
        Ok(self.client.apiserver_version().await?.git_version)
    }

    /// Adds pairs of a Service and an AddressableService without a status, until there are this many. Starts from the
    /// snapshot, if there is one, and saves a new one.
    pub(crate) async fn grow_to(&self, pairs: usize) -> Result<()> {
        if self.snapshot_folder().exists() {
            self.restore_snapshot().await?;
        }
        self.create_pairs(pairs).await?;
        self.save_snapshot().await
    }

    async fn create_pairs(&self, pairs: usize) -> Result<()> {
        let existing = self.list().await?.items.len();
        for namespace in 0..NAMESPACES {
            self.create_namespace(&format!("bench-{namespace}")).await?;
        }
        for_each_concurrently(existing..pairs, async |number| {
            let (namespace, name) = (format!("bench-{}", number % NAMESPACES), format!("web-{number:06}"));
            self.create_addressable_service(&namespace, &name).await?;
            self.create_service(&namespace, &name).await
        })
        .await
    }

    pub(crate) async fn create_namespace(&self, name: &str) -> Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        Ok(self.plane.apply_yaml(&namespace.to_string()).await?)
    }

    pub(crate) async fn create_service(&self, namespace: &str, name: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{namespace}/services");
        self.send(Request::post(path), &service(namespace, name)).await
    }

    pub(crate) async fn delete_services(&self, namespace: &str, names: Vec<String>) -> Result<()> {
        for_each_concurrently(names, async |name| {
            let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
            self.send(Request::delete(path), &json!({})).await
        })
        .await
    }

    pub(crate) async fn create_addressable_services(
        &self,
        namespace: &str,
        names: Vec<String>,
    ) -> Result<()> {
        for_each_concurrently(names, async |name| self.create_addressable_service(namespace, &name).await)
            .await
    }

    async fn create_addressable_service(&self, namespace: &str, name: &str) -> Result<()> {
        let path = format!("/apis/samples.knative.dev/v1alpha1/namespaces/{namespace}/addressableservices");
        self.send(Request::post(path), &addressable_service(namespace, name)).await
    }

    /// Restores the [saved](Self::save_snapshot) objects under a new API server, so that each candidate starts from the
    /// same state.
    pub(crate) async fn restore_snapshot(&self) -> Result<()> {
        self.plane.stop().await?;
        copy_folder(&self.snapshot_folder(), &self.etcd_folder()).await?;
        self.plane.restart().await?;
        self.wait_for_watch_cache().await
    }

    /// Saves the current objects, in place of the previous snapshot. Restarts the API server.
    pub(crate) async fn save_snapshot(&self) -> Result<()> {
        self.plane.stop().await?;
        copy_folder(&self.etcd_folder(), &self.snapshot_folder()).await?;
        Ok(self.plane.restart().await?)
    }

    /// Waits until the API server's watch cache has both Kinds.
    async fn wait_for_watch_cache(&self) -> Result<()> {
        for path in [SERVICES, ADDRESSABLE_SERVICES] {
            let empty_list = format!("{path}?resourceVersion=0&fieldSelector=metadata.name%3Dnone");
            self.client.request_text(Request::get(empty_list).body(Vec::new())?).await?;
        }
        Ok(())
    }

    fn etcd_folder(&self) -> PathBuf {
        self.folder().join("etcd")
    }

    fn snapshot_folder(&self) -> PathBuf {
        self.folder().join("snapshot")
    }

    /// Removes every status in one namespace.
    pub(crate) async fn clear_statuses(&self, namespace: &str) -> Result<()> {
        let all = self.list().await?.items.into_iter();
        let with_status =
            all.filter(|listed| listed.metadata.namespace == namespace && listed.status.is_some());
        let no_status = json!({"status": null});
        for_each_concurrently(with_status, async |listed| {
            self.merge_patch(&listed.status_path(), &no_status).await
        })
        .await
    }

    /// Returns the writes that make every object Ready. Each line has a path and a merge patch with the current
    /// resourceVersion as precondition.
    pub(crate) async fn status_writes(&self) -> Result<String> {
        let lines = self.list().await?.items.into_iter().map(|listed| {
            let mut body = ready_status(&listed.metadata.namespace, &listed.metadata.name);
            body["metadata"] = json!({"resourceVersion": listed.metadata.resource_version});
            format!("{}\t{body}\n", listed.status_path())
        });
        Ok(lines.collect())
    }

    /// Watches the AddressableServices from now on.
    pub(crate) async fn watch(&self) -> Result<Watch> {
        Ok(Watch::start(&self.client, self.list().await?.metadata.resource_version))
    }

    /// Ends all watches, and makes their resourceVersions too old to resume from.
    pub(crate) async fn expire_watches(&self) -> Result<()> {
        self.plane.compact().await?;
        Ok(self.plane.restart().await?)
    }

    /// Makes an AddressableService name a missing Service, and then creates that Service. Waits for the candidate's
    /// status write after each step, which shows that the candidate watches both Kinds.
    pub(crate) async fn wait_until_both_kinds_are_watched(&self) -> Result<()> {
        let listed =
            self.list().await?.items.into_iter().next().ok_or("there is no AddressableService")?.metadata;
        let path = format!(
            "/apis/samples.knative.dev/v1alpha1/namespaces/{}/addressableservices/{}",
            listed.namespace, listed.name
        );
        let mut watch = self.watch().await?;
        self.merge_patch(&path, &json!({"spec": {"serviceName": "late"}})).await?;
        while watch.next().await?.ready != Some(false) {}
        self.create_service(&listed.namespace, "late").await?;
        while watch.next().await?.ready != Some(true) {}
        Ok(())
    }

    /// Sets an annotation of 10 to 300 bytes on each Service.
    pub(crate) async fn annotate_services(&self) -> Result<()> {
        let length = AtomicUsize::new(0);
        let services: Vec<Metadata> =
            self.list().await?.items.into_iter().map(|listed| listed.metadata).collect();
        for_each_concurrently(services, async |Metadata { namespace, name, .. }| {
            let note = "x".repeat(10 + length.fetch_add(37, Ordering::Relaxed) % 290);
            let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
            self.merge_patch(&path, &json!({"metadata": {"annotations": {"bench.reknit.dev/note": note}}}))
                .await
        })
        .await
    }

    async fn merge_patch(&self, path: &str, patch: &Value) -> Result<()> {
        self.send(Request::patch(path).header("Content-Type", "application/merge-patch+json"), patch).await
    }

    async fn send(&self, request: http::request::Builder, body: &Value) -> Result<()> {
        let request = request.body(body.to_string().into_bytes())?;
        self.client.request_text(request).await?;
        Ok(())
    }

    async fn list(&self) -> Result<List> {
        Ok(self.client.request(Request::get(ADDRESSABLE_SERVICES).body(Vec::new())?).await?)
    }
}

/// Replaces `to` with a copy of `from`.
async fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        tokio::fs::remove_dir_all(to).await?;
    }
    let status = Command::new("cp").arg("-R").args([from, to]).status().await?;
    if status.success() { Ok(()) } else { Err(format!("failed to copy {}: {status}", from.display()).into()) }
}

/// Calls `action` with each item, for a limited number of items at a time.
async fn for_each_concurrently<T>(
    items: impl IntoIterator<Item = T>,
    action: impl AsyncFn(T) -> Result<()>,
) -> Result<()> {
    stream::iter(items.into_iter().map(Ok)).try_for_each_concurrent(CONCURRENCY, |item| action(item)).await
}
