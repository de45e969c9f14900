//! The conditions for the creation of a child by its name, and for writes of the children of a deleted owner.

use kube::api::{ApiResource, ObjectMeta};
use reknit_injection::Cached;

use super::{desired::Desired, error::NotApplied, existing::ApplyResult, lister::Owned, owner::Owner};

/// The finalizer by which the garbage collector deletes the children before the owner.
const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer by which the garbage collector removes the owner from the children.
const ORPHAN: &str = "orphan";

impl<T: Cached> Owned<T> {
    /// Fails if the child must not be created: its name leaves no room for its dependents, or its owner is being deleted
    /// and gets no new child (see [`refusal_to_create`]).
    pub(super) fn check_creation(&self, owner: &impl Owner, desired: &Desired) -> ApplyResult<()> {
        self.check_length_of_name(desired)?;
        refuse(owner, desired, refusal_to_write(owner.meta()).or_else(|| refusal_to_create(owner.meta())))
    }

    /// Fails if the existing child must not be written, because the garbage collector orphans it.
    pub(super) fn check_update(&self, owner: &impl Owner, desired: &Desired) -> ApplyResult<()> {
        refuse(owner, desired, refusal_to_write(owner.meta()))
    }

    fn check_length_of_name(&self, desired: &Desired) -> ApplyResult<()> {
        let (kind, name) = (&self.shared.client.kind.resource, &desired.key.name);
        let Some(max_bytes) = max_bytes_of_name(kind).filter(|max_bytes| name.len() > *max_bytes) else {
            return Ok(());
        };
        let problem = format!(
            "whose name {name:?} has {} bytes, and not at most {max_bytes} (see `child_name_within`),",
            name.len()
        );
        Err(NotApplied::Unusable { kind: kind.kind.clone(), problem })
    }
}

fn refuse(owner: &impl Owner, desired: &Desired, advice: Option<&'static str>) -> ApplyResult<()> {
    match advice {
        Some(advice) => Err(NotApplied::owner_deleted(desired.name.clone(), owner, advice)),
        None => Ok(()),
    }
}

/// Returns why no child of the owner with this metadata is written, and what to do. `None` if children are written.
///
/// While the owner has the finalizer `orphan`, children that exist are to stay as they are, and a new one could be orphaned,
/// too.
fn refusal_to_write(owner: &ObjectMeta) -> Option<&'static str> {
    is_deleted_with(owner, ORPHAN).then_some(
        "the children are to stay as they are, and the garbage collector is taking them from their owner. It then \
         removes its finalizer `orphan`",
    )
}

/// Returns why no child is created for the owner with this metadata, and what to do. `None` if children are created.
///
/// A finalizer of a controller keeps the owner, and so its children: the garbage collector deletes them once the owner is
/// gone. With its own finalizer `foregroundDeletion`, it deletes them first. It removes that one also while others keep the
/// owner.
fn refusal_to_create(owner: &ObjectMeta) -> Option<&'static str> {
    owner.deletion_timestamp.as_ref()?;
    if is_deleted_with(owner, FOREGROUND) {
        return Some(
            "the garbage collector deletes the children first, and a new one is created once it has removed its \
             finalizer `foregroundDeletion` from the owner",
        );
    }
    let has_finalizer = owner.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    (!has_finalizer).then_some("no finalizer keeps the owner, so it needs no new child")
}

fn is_deleted_with(owner: &ObjectMeta, finalizer: &str) -> bool {
    let mut finalizers = owner.finalizers.iter().flatten();
    owner.deletion_timestamp.is_some() && finalizers.any(|name| name == finalizer)
}

/// The maximum length of a name of this Kind that leaves room for the names that its controller derives from it.
///
/// A StatefulSet with a longer name is accepted and may get no pods: their label `controller-revision-hash` is the name, a
/// dash and up to ten characters. A CronJob with a longer name is refused.
fn max_bytes_of_name(kind: &ApiResource) -> Option<usize> {
    match (&*kind.group, &*kind.kind) {
        ("apps", "StatefulSet") | ("batch", "CronJob") => Some(52),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn the_children_of_a_deleted_owner_are_written_while_controllers_finalize_it() {
        for (finalizers, updates, creates) in [
            (&["a.io/x"][..], true, true),
            (&["a.io/x", "b.io/x"], true, true),
            (&[], true, false),
            (&["a.io/x", "foregroundDeletion"], true, false),
            (&["orphan", "a.io/x"], false, false),
        ] {
            let finalizers = Some(finalizers.iter().map(|&name| name.into()).collect());
            let mut owner = ObjectMeta { finalizers, ..ObjectMeta::default() };
            assert_eq!(refusal_to_write(&owner).or(refusal_to_create(&owner)), None, "it is not deleted");
            owner.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
            assert_eq!(refusal_to_write(&owner).is_none(), updates, "{owner:?}");
            let is_created = refusal_to_write(&owner).or(refusal_to_create(&owner)).is_none();
            assert_eq!(is_created, creates, "{owner:?}");
        }
    }
}
