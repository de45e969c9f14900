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

const CRD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/300-addressableservice.yaml");
const ADDRESSABLE_SERVICES: &str = "/apis/samples.knative.dev/v1alpha1/addressableservices";
const SERVICES: &str = "/api/v1/services";
/// The number of concurrent requests of this program outside of measurements.
const AT_ONCE: usize = 32;
const NAMESPACES: usize = 10;

/// A real API server with only the objects of the measurement.
pub(crate) struct Cluster {
    plane: ControlPlane,
    client: Client,
}

/// The fields of an AddressableService that are read.
#[derive(Deserialize)]
pub(crate) struct Found {
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
    items: Vec<Found>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

impl Found {
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

    pub(crate) async fn version(&self) -> Result<String> {
        Ok(self.client.apiserver_version().await?.git_version)
    }

    /// Adds pairs of an AddressableService without a status and its Service until there are this many.
    pub(crate) async fn grow_to(&self, pairs: usize) -> Result<()> {
        if self.kept().exists() {
            self.reset().await?;
        }
        self.add_up_to(pairs).await?;
        self.keep().await
    }

    async fn add_up_to(&self, pairs: usize) -> Result<()> {
        let there = self.list().await?.items.len();
        for namespace in 0..NAMESPACES {
            self.make_namespace(&format!("bench-{namespace}")).await?;
        }
        each(there..pairs, async |number| {
            let (namespace, name) = (format!("bench-{}", number % NAMESPACES), format!("web-{number:06}"));
            self.add_addressable_service(&namespace, &name).await?;
            self.add_service(&namespace, &name).await
        })
        .await
    }

    pub(crate) async fn make_namespace(&self, name: &str) -> Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        Ok(self.plane.apply_yaml(&namespace.to_string()).await?)
    }

    pub(crate) async fn add_service(&self, namespace: &str, name: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{namespace}/services");
        self.send(Request::post(path), &service(namespace, name)).await
    }

    pub(crate) async fn remove_services(&self, namespace: &str, names: Vec<String>) -> Result<()> {
        each(names, async |name| {
            let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
            self.send(Request::delete(path), &json!({})).await
        })
        .await
    }

    pub(crate) async fn add_addressable_services(&self, namespace: &str, names: Vec<String>) -> Result<()> {
        each(names, async |name| self.add_addressable_service(namespace, &name).await).await
    }

    async fn add_addressable_service(&self, namespace: &str, name: &str) -> Result<()> {
        let path = format!("/apis/samples.knative.dev/v1alpha1/namespaces/{namespace}/addressableservices");
        self.send(Request::post(path), &addressable_service(namespace, name)).await
    }

    /// Restores the state that was [kept](Self::keep), under a new API server, so that each candidate starts from the
    /// same state.
    pub(crate) async fn reset(&self) -> Result<()> {
        self.plane.stop().await?;
        copy(&self.kept(), &self.data()).await?;
        self.plane.restart().await?;
        self.warm().await
    }

    /// Keeps the current state, instead of the state that was kept before.
    pub(crate) async fn keep(&self) -> Result<()> {
        self.plane.stop().await?;
        copy(&self.data(), &self.kept()).await?;
        Ok(self.plane.restart().await?)
    }

    /// Waits until the API server has cached the objects that are going to be listed.
    async fn warm(&self) -> Result<()> {
        for path in [SERVICES, ADDRESSABLE_SERVICES] {
            let nothing = format!("{path}?resourceVersion=0&fieldSelector=metadata.name%3Dnone");
            self.client.request_text(Request::get(nothing).body(Vec::new())?).await?;
        }
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.folder().join("etcd")
    }

    fn kept(&self) -> PathBuf {
        self.folder().join("kept")
    }

    /// Removes every status in one namespace.
    pub(crate) async fn reset_in(&self, namespace: &str) -> Result<()> {
        let all = self.list().await?.items.into_iter();
        let with_status = all.filter(|found| found.metadata.namespace == namespace && found.status.is_some());
        let none = json!({"status": null});
        each(with_status, async |found| self.merge(&found.status_path(), &none).await).await
    }

    /// The writes that make every object Ready. Each line has a path and a merge patch, which only fits the current
    /// resourceVersion.
    pub(crate) async fn status_writes(&self) -> Result<String> {
        let lines = self.list().await?.items.into_iter().map(|found| {
            let mut body = ready_status(&found.metadata.namespace, &found.metadata.name);
            body["metadata"] = json!({"resourceVersion": found.metadata.resource_version});
            format!("{}\t{body}\n", found.status_path())
        });
        Ok(lines.collect())
    }

    /// Watches the AddressableServices from now on.
    pub(crate) async fn watch(&self) -> Result<Watch> {
        Ok(Watch::from(&self.client, self.list().await?.metadata.resource_version))
    }

    /// Ends all watches, and makes their resourceVersions too old to resume from.
    pub(crate) async fn forget(&self) -> Result<()> {
        self.plane.compact().await?;
        Ok(self.plane.restart().await?)
    }

    /// Makes an AddressableService name a missing Service, and then creates that Service. Waits for the status each
    /// time, which shows that the candidate watches both Kinds.
    pub(crate) async fn served_again(&self) -> Result<()> {
        let found = self.list().await?.items.into_iter().next().ok_or("there is no object")?.metadata;
        let path = format!(
            "/apis/samples.knative.dev/v1alpha1/namespaces/{}/addressableservices/{}",
            found.namespace, found.name
        );
        let mut watch = self.watch().await?;
        self.merge(&path, &json!({"spec": {"serviceName": "late"}})).await?;
        while watch.next().await?.ready != Some(false) {}
        self.add_service(&found.namespace, "late").await?;
        while watch.next().await?.ready != Some(true) {}
        Ok(())
    }

    /// Sets an annotation of 10 to 300 bytes on each Service.
    pub(crate) async fn change_services(&self) -> Result<()> {
        let length = AtomicUsize::new(0);
        let services: Vec<Metadata> =
            self.list().await?.items.into_iter().map(|found| found.metadata).collect();
        each(services, async |Metadata { namespace, name, .. }| {
            let note = "x".repeat(10 + length.fetch_add(37, Ordering::Relaxed) % 290);
            let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
            self.merge(&path, &json!({"metadata": {"annotations": {"bench.reknit.dev/note": note}}})).await
        })
        .await
    }

    async fn merge(&self, path: &str, patch: &Value) -> Result<()> {
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

/// Makes one folder a copy of the other.
async fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        tokio::fs::remove_dir_all(to).await?;
    }
    let copied = Command::new("cp").arg("-R").args([from, to]).status().await?;
    if copied.success() { Ok(()) } else { Err(format!("{} was not copied", from.display()).into()) }
}

/// Applies `to` to each item, many at a time.
async fn each<T>(all: impl IntoIterator<Item = T>, to: impl AsyncFn(T) -> Result<()>) -> Result<()> {
    stream::iter(all.into_iter().map(Ok)).try_for_each_concurrent(AT_ONCE, |one| to(one)).await
}
