//! Creates interchangeable children, such as the Pods of a ReplicaSet.

use std::sync::Arc;

use kube::Resource;
use reknit_apis::{Key, OwnedBy, Scope};
use reknit_injection::Cached;
use serde::Serialize;

use crate::{
    metrics::ChildResult,
    owned::{Owned, owner::set_controller},
};

impl<T: Cached> Owned<T> {
    /// Creates a child, usually with a `generateName`. The child gets the owner as its controller and the owner's
    /// namespace, if any. For a child with a fixed name and a fixed content use [`apply`](Self::apply).
    ///
    /// The child gets no annotation `reknit.dev/applied`: nothing looks for a child whose name the API server chose. After
    /// a restore from a backup, [`claim`](Self::claim) adopts such children by their labels. It also gives their owner
    /// references a new version of the owner's Kind, which nothing else does.
    ///
    /// The created object is in the cache before this returns, so the next pass counts it. If the answer is lost
    /// although the API server created the object, the watch reports it.
    ///
    /// Requires the verb create on the child and, with the admission plugin OwnerReferencesPermissionEnforcement,
    /// update on the owner's `finalizers` subresource.
    ///
    /// ```
    /// use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
    /// use kube::ResourceExt;
    /// use reknit_reconciler::{Owned, Result};
    ///
    /// async fn one_more(pods: &Owned<Pod>, set: &ReplicaSet) -> Result<()> {
    ///     let mut pod = Pod::default();
    ///     pod.metadata.generate_name = Some(format!("{}-", set.name_any()));
    ///     pods.create(set, pod).await?;
    ///     Ok(())
    /// }
    ///
    /// async fn one_less(pods: &Owned<Pod>, set: &ReplicaSet) -> Result<()> {
    ///     if let Some(pod) = pods.of(set).find(|pod| pod.metadata.deletion_timestamp.is_none()) {
    ///         pods.delete(&pod).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// The name of a StatefulSet or a CronJob is not checked: give it a `generateName` of at most 47 bytes.
    ///
    /// # Errors
    ///
    /// Returns the error of the request.
    pub async fn create<O>(&self, owner: &O, mut child: T) -> kube::Result<Arc<T>>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Serialize + Resource<Scope: OwnedBy<O::Scope>>,
    {
        let meta = child.meta_mut();
        match (self.shared.client.kind.is_namespaced, &owner.meta().namespace) {
            (true, Some(namespace)) => meta.namespace = Some(namespace.clone()),
            (true, None) => {}
            (false, _) => meta.namespace = None, // the API server ignores it, too
        }
        set_controller(meta, owner);
        let body = self.to_json(&child)?;
        let created: T = self.shared.client.create(&Key::of(&child), &body).await?;
        let name = self.shared.client.kind.with_key(&Key::of(&created));
        self.report_dropped(owner, &name, &body, &self.to_json(&created)?);
        self.shared.metrics.record(ChildResult::Created);
        Ok(Arc::new(created))
    }
}
