//! Adopts orphans that match an owner's selector, and releases children that no longer match it.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use reknit_apis::{Key, Kind};
use reknit_injection::{Cached, internal::is_absence_of};

use crate::{
    Error, Result, ResultExt,
    object_client::OnlyMetadata,
    owned::{Owned, controller_reference, error::kind_and_key, owner::update_version},
};

impl<T: Cached> Owned<T> {
    /// Adopts matching objects without a controller, releases controlled objects that no longer match, and returns the
    /// objects that the owner then controls. A ReplicaSet treats its Pods this way; `matches` usually compares a label.
    ///
    /// The references to the owner get the version of `O`. The garbage collector does not delete an object whose reference
    /// names a version that the API server no longer serves.
    ///
    /// Orphans are adopted from the owner's own namespace, unless they are being deleted. Objects with another
    /// controller are left alone. The uid and the resourceVersion of the cached object are preconditions of each
    /// patch. If two owners adopt the same orphan, one of them gets a conflict.
    ///
    /// Before objects are adopted, the owner is read from the API server. An owner that was deleted with
    /// `--cascade=orphan` must not adopt its orphans again, which a stale cache could cause.
    ///
    /// Requires the verb `patch` on the objects and `get` on the owner. A change of an orphan enqueues no owner. To
    /// enqueue the owners that could adopt it, use `build.watch(&informer).keys(keys::label(..))`.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
    /// use kube::ResourceExt;
    /// use reknit_reconciler::{Owned, Result};
    ///
    /// async fn pods(pods: &Owned<Pod>, set: &ReplicaSet) -> Result<Vec<Arc<Pod>>> {
    ///     pods.claim(set, |pod| pod.labels().get("set") == Some(&set.name_any())).await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of the first patch that fails. If the API server has answered it, the other objects are adopted and
    /// released first: its answer, such as that of a webhook that is down, may concern this object alone. A patch of an
    /// object that no longer exists is not an error. It is an error if the API server answers with other owner references than
    /// those of the patch, because a webhook or a policy has changed them. If the owner is gone or being deleted, the error
    /// is permanent.
    pub async fn claim<O: Kind>(
        &self,
        owner: &O,
        matches: impl Fn(&T) -> bool + Send,
    ) -> Result<Vec<Arc<T>>> {
        let (matching, others): (Vec<_>, Vec<_>) = self.of(owner).partition(|object| matches(object));
        let mut refused = Ok(());
        for object in others {
            let released = self.set_owners(&*object, owners_without(&*object, owner)).await?;
            refused = refused.and(released);
        }
        let mut is_updated = false;
        for object in &matching {
            if let Some(owners) = owners_in_version(&**object, owner) {
                refused = refused.and(self.set_owners(&**object, owners).await?);
                is_updated = true;
            }
        }
        let is_candidate = |object: &Arc<T>| object.meta().deletion_timestamp.is_none() && matches(object);
        let orphans: Vec<_> =
            self.orphans_in(owner.meta().namespace.as_deref()).filter(is_candidate).collect();
        if orphans.is_empty() && !is_updated {
            return refused.map(|()| matching);
        }
        if !orphans.is_empty() {
            self.check_alive(owner).await?;
        }
        for object in orphans {
            let mut owners = owners_without(&*object, owner);
            owners.push(controller_reference(owner));
            refused = refused.and(self.set_owners(&*object, owners).await?);
        }
        refused.map(|()| self.of(owner).filter(|object| matches(object)).collect())
    }

    /// Reads the owner from the API server. Fails if it is gone, replaced or being deleted.
    async fn check_alive<O: Kind>(&self, owner: &O) -> Result<()> {
        let is_alive = self.is_alive(owner).await.context(format_args!(
            "failed to check that {} exists before adopting objects",
            kind_and_key(owner)
        ))?;
        match is_alive {
            true => Ok(()),
            false => Err(Error::permanent(format!(
                "{} is gone or being deleted and adopts no objects",
                kind_and_key(owner)
            ))),
        }
    }

    /// Replaces the owner references if the object is unchanged. An object that is gone is not an error. The inner result is
    /// that of this object alone. The outer one fails with an error that the patches of other objects would meet too.
    async fn set_owners(&self, object: &T, owners: Vec<OwnerReference>) -> Result<Result<()>> {
        let client = &self.shared.client;
        let failed =
            format!("failed to change the owner references of {}", client.kind.with_key(&Key::of(object)));
        match client.replace_metadata(object, "ownerReferences", &owners).await {
            Ok(OnlyMetadata { metadata }) => Ok(check_stored(&metadata, &owners).context(failed)),
            Err(error) if is_absence_of(&error, &client.kind.resource.plural) => Ok(Ok(())),
            // Credentials and overload concern all objects.
            Err(kube::Error::Api(status)) if !matches!(status.code, 401 | 429) => {
                Ok(Err(kube::Error::Api(status)).context(failed))
            }
            Err(error) => Err(error).context(failed),
        }
    }
}

/// Fails if an admission webhook or policy has changed the owner references before they were stored.
fn check_stored(stored: &ObjectMeta, owners: &[OwnerReference]) -> Result<()> {
    let uids =
        |owners: &[OwnerReference]| -> BTreeSet<_> { owners.iter().map(|owner| owner.uid.clone()).collect() };
    match uids(stored.owner_references.as_deref().unwrap_or_default()) == uids(owners) {
        true => Ok(()),
        false => Err("the API server stored others: exempt the object from the admission webhook or policy that changes \
                      them"
            .into()),
    }
}

/// The owner references with the version of `O` in that to this owner. `None` if it has that version.
fn owners_in_version<T: Resource, O: Resource<DynamicType = ()>>(
    object: &T,
    owner: &O,
) -> Option<Vec<OwnerReference>> {
    let mut meta =
        ObjectMeta { owner_references: object.meta().owner_references.clone(), ..ObjectMeta::default() };
    update_version(&mut meta, owner);
    (meta.owner_references != object.meta().owner_references).then_some(meta.owner_references).flatten()
}

fn owners_without<T: Resource, O: Resource>(object: &T, owner: &O) -> Vec<OwnerReference> {
    let owners = object.meta().owner_references.iter().flatten();
    owners.filter(|other| Some(&other.uid) != owner.meta().uid.as_ref()).cloned().collect()
}
