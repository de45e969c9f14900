//! Adopts children that were restored from a backup together with their owner, whose uid is a new one.

use std::sync::Arc;

use reknit_injection::{Cached, controller_name};

use super::{
    annotation::was_written_by,
    desired::Desired,
    existing::ApplyResult,
    lister::Owned,
    owner::{Owner, controller_of, is_controlled_by},
};

impl<T: Cached> Owned<T> {
    /// Returns true if this controller has applied the object, which has lost its owner, for an owner of the same Kind,
    /// namespace and name. The object has no controller, or an earlier owner of that name, which no longer exists.
    pub(super) fn is_restored<O: Owner>(&self, owner: &O, object: &T) -> bool {
        let is_former_owner = || controller_name::<O, T>(object) == owner.meta().name.as_deref();
        !is_controlled_by(owner, object)
            && (controller_of(object).is_none() || is_former_owner())
            && was_written_by(object, owner, self.components())
    }

    /// This component and the earlier ones that it replaces.
    pub(super) fn components(&self) -> impl Iterator<Item = &str> {
        let earlier = self.shared.options.earlier_managers.iter().map(String::as_str);
        earlier.chain([&*self.shared.client.manager])
    }

    /// Removes the reference to the earlier owner from a restored child, because an object has one controller.
    pub(super) async fn remove_former_owner(
        &self,
        owner: &impl Owner,
        desired: &Desired,
        restored: Arc<T>,
    ) -> ApplyResult<Arc<T>> {
        if controller_of(&*restored).is_none() || is_controlled_by(owner, &*restored) {
            return Ok(restored);
        }
        let owners = restored.meta().owner_references.iter().flatten();
        let others: Vec<_> = owners.filter(|owner| owner.controller != Some(true)).collect();
        let patched = self.shared.client.replace_metadata(&*restored, "ownerReferences", &others).await;
        Ok(Arc::new(patched.map_err(|error| desired.refused(error))?))
    }
}
