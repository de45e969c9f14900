//! Deletes children with their dependents.

use kube::api::{DeleteParams, Preconditions, PropagationPolicy};
use reknit_apis::Key;
use reknit_injection::{Cached, internal::is_absence_of};

use crate::owned::Owned;

impl<T: Cached> Owned<T> {
    /// Deletes this object in the background: the garbage collector deletes its dependents after it, such as the Pods
    /// of a Job. An object that no longer exists is not an error, but another 404 is: from a proxy, or because the API server
    /// does not serve the Kind. Use [`delete_with`](Self::delete_with) for another
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
        let client = &self.shared.client;
        match client.delete(&key, &params).await {
            Err(error) if is_absence_of(&error, &client.kind.resource.plural) => Ok(()),
            answer => answer.map(drop),
        }
    }
}
