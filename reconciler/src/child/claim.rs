//! Takes in what no object controls, and lets go of what does not belong to its controller any more.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Resource,
    api::{DynamicObject, GetParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use reknit_apis::{Key, Kind};
use reknit_injection::Cached;
use serde_json::json;

use super::{
    Children, at,
    error::{named, said},
    wanted::controller,
};
use crate::{Error, Owned, Result, endpoint::code};

#[derive(Debug, thiserror::Error)]
enum NotClaimed {
    #[error("cannot see whether {0} is still there to adopt")]
    Unseen(String, #[source] kube::Error),
    #[error("{0} is going or gone, and adopts nothing any more")]
    Going(String),
    #[error("cannot adopt or release {0}")]
    Refused(String, #[source] kube::Error),
}

impl<T: Cached<DynamicType = ()>> Owned<T> {
    /// What this object controls, once it has adopted what belongs to it and has no controller, and has released what
    /// belongs to it no more; `belongs` usually looks at a label. It is what a ReplicaSet does with its Pods.
    ///
    /// Orphans are looked for in the owner's own namespace; one that is being deleted stays an orphan. What another
    /// object controls is left alone. Every patch is conditional on the uid and the resourceVersion that were read, so of
    /// two that want the same orphan one gets a conflict.
    ///
    /// Before it adopts anything, the owner is read from the API server: one that is deleted with `--cascade=orphan`
    /// leaves its objects to nobody, and while the cache is behind it must not take them back.
    ///
    /// Needs the verb patch on these objects and get on the owner. An orphan wakes nobody by itself:
    /// `build.watch(&informer).keys(keys::label(..))`.
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
    /// The first patch that fails, unless the object is gone; nothing more is claimed then. A permanent one where the
    /// owner is going or gone.
    pub async fn claim<O: Kind>(
        &self,
        owner: &O,
        belongs: impl Fn(&T) -> bool + Send,
    ) -> Result<Vec<Arc<T>>> {
        let (mine, strays): (Vec<_>, Vec<_>) = self.of(owner).partition(|object| belongs(object));
        for object in strays {
            self.children.release(&*object, owner).await?;
        }
        let waits = |object: &Arc<T>| object.meta().deletion_timestamp.is_none() && belongs(object);
        let orphans: Vec<_> = self.orphans_in(owner.meta().namespace.as_deref()).filter(waits).collect();
        if orphans.is_empty() {
            return Ok(mine);
        }
        self.children.stays(owner).await?;
        for object in orphans {
            self.children.adopt(&*object, owner).await?;
        }
        Ok(self.of(owner).filter(|object| belongs(object)).collect())
    }
}

impl<T: Cached<DynamicType = ()>> Children<T> {
    /// An error, unless the owner is there and to stay.
    async fn stays<O: Kind>(&self, owner: &O) -> Result<()> {
        let unseen = |error| NotClaimed::Unseen(said(owner), error);
        let key = Key::of(owner);
        let request = at::<O>(&key).get(&key.name, &GetParams::default());
        let request = request.map_err(|error| unseen(kube::Error::BuildRequest(error)))?;
        let now: Option<PartialObjectMeta<DynamicObject>> = match self.client.request(request).await {
            Err(error) if code(&error) == Some(404) => None,
            answer => Some(answer.map_err(unseen)?),
        };
        let stays = now.is_some_and(|now| {
            now.metadata.uid == owner.meta().uid && now.metadata.deletion_timestamp.is_none()
        });
        if stays { Ok(()) } else { Err(Error::permanent(NotClaimed::Going(said(owner)))) }
    }

    async fn adopt<O: Kind>(&self, object: &T, owner: &O) -> Result<()> {
        let mut owners = others(object, owner);
        owners.push(controller(owner));
        self.own(object, owners).await
    }

    async fn release<O: Kind>(&self, object: &T, owner: &O) -> Result<()> {
        self.own(object, others(object, owner)).await
    }

    /// Provided that the object is as it was read. One that is gone needs no owner.
    async fn own(&self, object: &T, owners: Vec<OwnerReference>) -> Result<()> {
        let (key, meta) = (Key::of(object), object.meta());
        let refused = |error| NotClaimed::Refused(named::<T>(&key), error);
        let body = json!({ "metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": owners,
        } });
        let params = PatchParams { field_manager: Some(self.manager.clone()), ..PatchParams::default() };
        let request = at::<T>(&key).patch(&key.name, &params, &Patch::Merge(body));
        let request = request.map_err(|error| refused(kube::Error::BuildRequest(error)))?;
        match self.client.request::<PartialObjectMeta<DynamicObject>>(request).await {
            Err(error) if code(&error) == Some(404) => Ok(()),
            answer => Ok(answer.map(drop).map_err(refused)?),
        }
    }
}

/// Its owners but for this one.
fn others<T: Resource, O: Resource>(object: &T, owner: &O) -> Vec<OwnerReference> {
    let owners = object.meta().owner_references.iter().flatten();
    owners.filter(|other| Some(&other.uid) != owner.meta().uid.as_ref()).cloned().collect()
}
