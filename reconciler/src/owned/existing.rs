//! The existing object with the name of a child, which must be the owner's.

use std::sync::Arc;

use reknit_apis::Key;
use reknit_injection::Cached;

use super::{
    desired::Desired,
    error::{NotApplied, kind_and_key},
    lister::Owned,
    owner::{Owner, controller_of, is_controlled_by},
};
use crate::object_client::{ObjectKind, OnlyMetadata, status_code};

pub(super) type ApplyResult<T> = Result<T, NotApplied>;

/// The advice for a child that has lost its owner.
const NOT_ADOPTED: &str = "the child has lost its owner and stays as it is, as `kubectl delete --cascade=orphan` asks \
                           for; the next reconcile sees that; in finalize_kind, write only children that `Owned::of` \
                           lists";

impl<T: Cached> Owned<T> {
    /// Returns the child from the cache, if it exists. Fails if the object of this name is not the owner's. Such an object is
    /// tracked and then looked up again, so its deletion is not missed.
    pub(super) fn find_in_cache(&self, owner: &impl Owner, key: &Key) -> ApplyResult<Option<Arc<T>>> {
        let find = || self.check_owner(owner, key, self.informer.get(key));
        find().or_else(|_taken| {
            self.shared.tracker.lock().record_read(&Key::of(owner), key);
            find()
        })
    }

    /// Reads the child from the API server. It is tracked first, since it may be deleted before the answer arrives.
    /// Fails if the object of this name is not the owner's.
    pub(super) async fn read_live(&self, owner: &impl Owner, key: &Key) -> ApplyResult<Option<Arc<T>>> {
        self.shared.tracker.lock().record_read(&Key::of(owner), key);
        let client = &self.shared.client;
        let refused = |error| NotApplied::refused(client.kind.with_key(key), error);
        let found: Option<T> = client.get(key).await.map_err(refused)?;
        self.check_owner(owner, key, found.map(Arc::new))
    }

    /// Fails before a child is adopted if the owner is gone or being deleted, which a stale cache may not show: the garbage
    /// collector would delete the child. Without permission to read the owner, the cached state counts.
    pub(super) async fn check_owner_exists(&self, owner: &impl Owner, desired: &Desired) -> ApplyResult<()> {
        let not_adopted = || Err(NotApplied::owner_deleted(desired.name.clone(), owner, NOT_ADOPTED));
        if owner.meta().deletion_timestamp.is_some() {
            return not_adopted();
        }
        match self.is_alive(owner).await {
            Ok(true) => Ok(()),
            Ok(false) => not_adopted(),
            Err(error) if status_code(&error) == Some(403) => Ok(()),
            Err(error) => Err(desired.refused(error)),
        }
    }

    /// Reads the owner from the API server. Returns false if it is gone, replaced or being deleted.
    pub(super) async fn is_alive<O: Owner>(&self, owner: &O) -> kube::Result<bool> {
        let owners = self.shared.client.with_kind(ObjectKind::of::<O>());
        let found = owners.get::<OnlyMetadata>(&Key::of(owner)).await?;
        Ok(found.is_some_and(|found| {
            let is_same = owner.meta().uid.is_none() || found.metadata.uid == owner.meta().uid;
            is_same && found.metadata.deletion_timestamp.is_none()
        }))
    }

    fn check_owner(
        &self,
        owner: &impl Owner,
        key: &Key,
        found: Option<Arc<T>>,
    ) -> ApplyResult<Option<Arc<T>>> {
        let is_foreign = |found: &&T| !is_controlled_by(owner, *found) && !self.is_restored(owner, *found);
        let Some(foreign) = found.as_deref().filter(is_foreign) else { return Ok(found) };
        let by = controller_of(foreign).cloned().map(Box::new);
        Err(NotApplied::Taken {
            child: self.shared.client.kind.with_key(key),
            owner: kind_and_key(owner),
            by,
        })
    }
}
