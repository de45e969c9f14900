//! The existing object with the name of a child: it is absent, ours, or another owner's.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use reknit_apis::Key;
use reknit_injection::Cached;

use super::{
    desired::Desired,
    error::{NotApplied, kind_and_key},
    lister::Owned,
    owner::{Owner, controller_of, is_controlled_by},
};

pub(super) type ApplyResult<T> = Result<T, NotApplied>;

/// The existing object with the name of an owner's child, if any.
pub(super) enum Existing<T> {
    Absent,
    /// The owner controls it.
    Ours(Arc<T>),
    /// Another object controls it, or no object does (`None`).
    Foreign(Option<OwnerReference>),
}

impl<T: Resource> Existing<T> {
    fn of(owner: &impl Owner, found: Option<Arc<T>>) -> Self {
        match found {
            None => Self::Absent,
            Some(child) if is_controlled_by(owner, &*child) => Self::Ours(child),
            Some(child) => Self::Foreign(controller_of(&*child).cloned()),
        }
    }
}

impl<T: Cached> Owned<T> {
    /// Looks up the child in the cache. A foreign object is tracked and then looked up again, so its deletion is not
    /// missed.
    pub(super) fn find_in_cache(&self, owner: &impl Owner, key: &Key) -> Existing<T> {
        let find = || Existing::of(owner, self.informer.get(key));
        match find() {
            Existing::Foreign(_) => {
                self.shared.tracker.lock().read(&Key::of(owner), key);
                find()
            }
            existing => existing,
        }
    }

    /// Reads the child from the API server. It is tracked first, since it may be deleted before the answer arrives.
    pub(super) async fn read_live(&self, owner: &impl Owner, desired: &Desired) -> ApplyResult<Existing<T>> {
        let key = &desired.key;
        self.shared.tracker.lock().read(&Key::of(owner), key);
        let found: Option<T> = self.shared.client.get(key).await.map_err(|error| desired.refused(error))?;
        Ok(Existing::of(owner, found.map(Arc::new)))
    }
}

pub(super) fn name_taken_error(
    owner: &impl Owner,
    desired: &Desired,
    by: Option<OwnerReference>,
) -> NotApplied {
    NotApplied::Taken { child: desired.name.clone(), owner: kind_and_key(owner), by: by.map(Box::new) }
}
