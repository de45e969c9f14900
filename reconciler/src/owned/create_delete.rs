//! Creates and deletes interchangeable children, such as the Pods of a ReplicaSet.

use std::sync::Arc;

use kube::{
    Resource,
    api::{DeleteParams, Preconditions, PropagationPolicy},
};
use reknit_apis::{Key, OwnedBy, Scope};
use reknit_injection::Cached;
use serde::Serialize;
use serde_json::Value;

use super::{applied::Applied, error::NotApplied, lister::Owned, owner::controller_reference};
use crate::object_client::status_code;

impl<T: Cached> Owned<T> {
    /// Creates a child, usually with a `generateName`. The child gets the owner as its controller and the owner's
    /// namespace, if any. For a child with a fixed name and a fixed content use [`apply`](Self::apply).
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
    /// # Errors
    ///
    /// Returns the error of the request.
    pub async fn create<O>(&self, owner: &O, mut child: T) -> kube::Result<Arc<T>>
    where
        O: Resource<DynamicType = ()>,
        T: Serialize + Resource<Scope: OwnedBy<O::Scope>>,
    {
        let meta = child.meta_mut();
        if let Some(namespace) = owner.meta().namespace.as_ref().filter(|_| self.shared.kind.is_namespaced) {
            meta.namespace = Some(namespace.clone());
        }
        let owners = meta.owner_references.get_or_insert_default();
        owners.retain(|other| other.controller != Some(true));
        owners.push(controller_reference(owner));
        let (params, body) = (self.post_params(), self.to_json(&child)?.to_string().into_bytes());
        self.request(self.shared.kind.request_builder(&Key::of(&child)).create(&params, body))
            .await
            .map(Arc::new)
    }

    /// Applies a child as [`apply`](Self::apply) does, but first deletes the existing one if `must_replace` returns
    /// true for it. Use it for a child with an immutable field, such as the pod template of a Job.
    ///
    /// A child with a finalizer is created anew by the pass that follows the end of its deletion.
    ///
    /// ```
    /// use k8s_openapi::api::batch::v1::{CronJob, Job};
    /// use reknit_reconciler::{Owned, Result};
    ///
    /// async fn run(jobs: &Owned<Job>, owner: &CronJob, job: Job) -> Result<()> {
    ///     let template = job.spec.as_ref().map(|spec| spec.template.clone());
    ///     let has_other_template = |old: &Job| old.spec.as_ref().map(|spec| &spec.template) != template.as_ref();
    ///     jobs.apply_or_replace(owner, job, has_other_template).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`apply`](Self::apply), and [`NotApplied::Refused`] if the deletion fails.
    pub async fn apply_or_replace<O>(
        &self,
        owner: &O,
        child: T,
        must_replace: impl FnOnce(&T) -> bool,
    ) -> Result<Applied<T>, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Serialize + Resource<Scope: OwnedBy<O::Scope>>,
    {
        let existing = self.of(owner).find(|existing| existing.meta().name == child.meta().name);
        if let Some(outdated) = existing.filter(|existing| must_replace(existing)) {
            let refused = |source| NotApplied::Refused {
                child: self.shared.kind.with_key(&Key::of(&*outdated)),
                source: Box::new(source),
            };
            self.delete(&outdated).await.map_err(refused)?;
        }
        self.apply(owner, child).await
    }

    /// Deletes this object in the background: the garbage collector deletes its dependents after it, such as the Pods
    /// of a Job. An object that no longer exists is not an error. Use [`delete_with`](Self::delete_with) for another
    /// propagation policy.
    ///
    /// The uid of the object is a precondition, so another object of this name is not deleted. The result is in the
    /// cache before this returns: the object is absent, or has a `deletionTimestamp`. Requires the verb delete on the
    /// child.
    ///
    /// # Errors
    ///
    /// Returns the error of the request.
    pub async fn delete(&self, child: &T) -> kube::Result<()> {
        self.delete_with(child, DeleteParams::background()).await
    }

    /// Deletes this object as [`delete`](Self::delete) does, with these options.
    ///
    /// The propagation policy is `Background` unless the options name one. Without a policy, the API server would apply
    /// the default of the Kind, which for Jobs is to orphan their Pods. The uid of the object is a precondition unless
    /// the options name another.
    ///
    /// ```
    /// use k8s_openapi::api::batch::v1::Job;
    /// use kube::api::DeleteParams;
    /// use reknit_reconciler::{Owned, Result};
    ///
    /// async fn delete_after_its_pods(jobs: &Owned<Job>, job: &Job) -> Result<()> {
    ///     jobs.delete_with(job, DeleteParams::foreground()).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of the request.
    pub async fn delete_with(&self, child: &T, mut params: DeleteParams) -> kube::Result<()> {
        let key = Key::of(child);
        params.propagation_policy.get_or_insert(PropagationPolicy::Background);
        let no_preconditions = Preconditions { uid: None, resource_version: None };
        let preconditions = params.preconditions.get_or_insert(no_preconditions);
        preconditions.uid = preconditions.uid.take().or_else(|| child.meta().uid.clone());
        match self.request::<Value>(self.shared.kind.request_builder(&key).delete(&key.name, &params)).await {
            Err(error) if status_code(&error) == Some(404) => Ok(()),
            answer => answer.map(drop),
        }
    }
}
