//! The API server and its objects.

use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use futures::{TryStreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams},
};
use reknit::testing::ControlPlane;
use reknit_benches::{addressable_service, ready_status, service};
use reknit_samples::AddressableService;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{Result, rig::watch::Watch};

/// The number of concurrent requests with which this program prepares a measurement.
const CONCURRENCY: usize = 32;
const NAMESPACES: usize = 10;

/// A real API server with only the objects of the measurement.
pub(crate) struct Cluster {
    plane: ControlPlane,
    client: Client,
}

impl Cluster {
    pub(crate) async fn start() -> Result<Self> {
        let plane = ControlPlane::start().await?;
        plane.install::<AddressableService>().await?;
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
        create(&self.services(namespace), service(namespace, name)).await
    }

    pub(crate) async fn delete_services(&self, namespace: &str, names: Vec<String>) -> Result<()> {
        let services = self.services(namespace);
        for_each_concurrently(names, async |name| {
            services.delete(&name, &DeleteParams::default()).await?;
            Ok(())
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
        create(&self.addressable_services(namespace), addressable_service(namespace, name)).await
    }

    fn services(&self, namespace: &str) -> Api<Service> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn addressable_services(&self, namespace: &str) -> Api<AddressableService> {
        Api::namespaced(self.client.clone(), namespace)
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
        let empty_list = ListParams::default().match_any().fields("metadata.name=none");
        Api::<Service>::all(self.client.clone()).list(&empty_list).await?;
        Api::<AddressableService>::all(self.client.clone()).list(&empty_list).await?;
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
        let api = self.addressable_services(namespace);
        let listed = api.list(&ListParams::default()).await?.items.into_iter();
        for_each_concurrently(listed.filter(|object| object.status.is_some()), async |object| {
            let no_status = Patch::Merge(json!({"status": null}));
            api.patch_status(&object.name_any(), &PatchParams::default(), &no_status).await?;
            Ok(())
        })
        .await
    }

    /// Returns the writes that make every object Ready. Each line has a path and a merge patch with the current
    /// resourceVersion as precondition.
    pub(crate) async fn status_writes(&self) -> Result<String> {
        let lines = self.list().await?.items.into_iter().map(|object| {
            let (namespace, name) = namespace_and_name(&object);
            let mut body = ready_status(&namespace, &name);
            body["metadata"] = json!({"resourceVersion": object.metadata.resource_version});
            let path = AddressableService::url_path(&(), Some(&namespace));
            format!("{path}/{name}/status\t{body}\n")
        });
        Ok(lines.collect())
    }

    /// Watches the AddressableServices from now on.
    pub(crate) async fn watch(&self) -> Result<Watch> {
        let version = self.list().await?.metadata.resource_version.ok_or("a list without a version")?;
        Ok(Watch::start(&self.client, version))
    }

    /// Ends all watches, and makes their resourceVersions too old to resume from.
    pub(crate) async fn expire_watches(&self) -> Result<()> {
        self.plane.compact().await?;
        Ok(self.plane.restart().await?)
    }

    /// Makes an AddressableService name a missing Service, and then creates that Service. Waits for the candidate's
    /// status write after each step, which shows that the candidate watches both Kinds.
    pub(crate) async fn wait_until_both_kinds_are_watched(&self) -> Result<()> {
        let object = self.list().await?.items.into_iter().next().ok_or("there is no AddressableService")?;
        let (namespace, name) = namespace_and_name(&object);
        let mut watch = self.watch().await?;
        let late = Patch::Merge(json!({"spec": {"serviceName": "late"}}));
        self.addressable_services(&namespace).patch(&name, &PatchParams::default(), &late).await?;
        while watch.next().await?.ready != Some(false) {}
        self.create_service(&namespace, "late").await?;
        while watch.next().await?.ready != Some(true) {}
        Ok(())
    }

    /// Sets an annotation of 10 to 300 bytes on each Service.
    pub(crate) async fn annotate_services(&self) -> Result<()> {
        let length = AtomicUsize::new(0);
        for_each_concurrently(self.list().await?.items, async |object| {
            let (namespace, name) = namespace_and_name(&object);
            let note = "x".repeat(10 + length.fetch_add(37, Ordering::Relaxed) % 290);
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"bench.reknit.dev/note": note}}}));
            self.services(&namespace).patch(&name, &PatchParams::default(), &patch).await?;
            Ok(())
        })
        .await
    }

    async fn list(&self) -> Result<ObjectList<AddressableService>> {
        Ok(Api::all(self.client.clone()).list(&ListParams::default()).await?)
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

fn namespace_and_name(object: &AddressableService) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
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
