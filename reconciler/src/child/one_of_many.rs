//! Creates and deletes children that are like each other, where their number counts and not their names.

use std::sync::Arc;

use kube::{
    Resource,
    api::{DeleteParams, PostParams, Preconditions},
};
use reknit_apis::{Key, OwnedBy, Scope};
use reknit_injection::Cached;
use serde::Serialize;
use serde_json::Value;

use super::{at, wanted::controller};
use crate::{Owned, endpoint::code};

impl<T: Cached<DynamicType = ()>> Owned<T> {
    /// Creates a child, usually one with a `generateName`, with the owner as its controller and in the owner's namespace,
    /// if that has one. What is to exist under a name, and to stay as it is, is [applied](Self::apply) instead.
    ///
    /// It is in the cache before this returns, so no pass counts it out and creates one more. What the API server created
    /// although its answer was lost is there once the watch tells of it.
    ///
    /// It takes the verb create on the child, and where the admission plugin OwnerReferencesPermissionEnforcement is on,
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
    /// # Errors
    ///
    /// What the API server answered.
    pub async fn create<O>(&self, owner: &O, mut child: T) -> Result<Arc<T>, kube::Error>
    where
        O: Resource<DynamicType = ()>,
        T: Serialize + Resource<Scope: Scope + OwnedBy<O::Scope>>,
    {
        let meta = child.meta_mut();
        if let Some(namespace) = owner.meta().namespace.as_ref().filter(|_| T::Scope::NAMESPACED) {
            meta.namespace = Some(namespace.clone());
        }
        let owners = meta.owner_references.get_or_insert_default();
        owners.retain(|other| other.controller != Some(true));
        owners.push(controller(owner));
        let params =
            PostParams { field_manager: Some(self.children.manager.clone()), ..PostParams::default() };
        let body = serde_json::to_vec(&child).map_err(kube::Error::SerdeError)?;
        let request = at::<T>(&Key::of(&child)).create(&params, body).map_err(kube::Error::BuildRequest)?;
        self.children.client.request(request).await.map(Arc::new)
    }

    /// Deletes this very child, and none that came to its name meanwhile. One that is gone already is fine.
    ///
    /// What becomes of it is in the cache before this returns: it is gone, or carries a `deletionTimestamp`. It takes the
    /// verb delete on the child.
    ///
    /// # Errors
    ///
    /// What the API server answered.
    pub async fn delete(&self, child: &T) -> Result<(), kube::Error> {
        let key = Key::of(child);
        let preconditions = Preconditions { uid: child.meta().uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let request = at::<T>(&key).delete(&key.name, &params).map_err(kube::Error::BuildRequest)?;
        match self.children.client.request::<Value>(request).await {
            Err(error) if code(&error) == Some(404) => Ok(()),
            answer => answer.map(drop),
        }
    }
}
