//! The annotation of an applied child: a hash of the applied content, the component that applied it, and the owner.
//!
//! The hash shows that a field is no longer applied. The rest shows whose child an object was that has lost its owner
//! references, such as one that was restored from a backup. The owner is named without its uid and its version, which
//! differ after a restore or an upgrade.

use kube::Resource;
use reknit_apis::Key;

use super::owner::Owner;

/// The name of the annotation.
pub const APPLIED: &str = "reknit.dev/applied";

/// Takes the place of the hash in a child that was written by an update.
pub(super) const UPDATED: &str = "update";

/// The value of the annotation: `<hash> by <component> for <Kind>.<group> <namespace>/<name>`.
pub(super) fn applied_value(hash: &str, component: &str, owner: &impl Owner) -> String {
    format!("{hash} {}", origin(component, owner))
}

/// Returns the value of the annotation, if the object has it.
pub(super) fn applied<T: Resource>(object: &T) -> Option<&str> {
    object.meta().annotations.as_ref()?.get(APPLIED).map(String::as_str)
}

/// Returns true if one of these components has written the object for an owner of this Kind, namespace and name.
pub(super) fn was_written_by<'a, T: Resource>(
    object: &T,
    owner: &impl Owner,
    mut components: impl Iterator<Item = &'a str>,
) -> bool {
    parts(object).is_some_and(|(_, found)| components.any(|component| found == origin(component, owner)))
}

/// Returns true if this component has applied the object, rather than updated it, for such an owner.
pub(super) fn was_applied_by<T: Resource>(object: &T, owner: &impl Owner, component: &str) -> bool {
    parts(object).is_some_and(|(hash, found)| hash != UPDATED && found == origin(component, owner))
}

/// Returns true if this component has applied the object, for any owner.
pub(super) fn was_applied_for_any<T: Resource>(object: &T, component: &str) -> bool {
    parts(object)
        .is_some_and(|(hash, origin)| hash != UPDATED && origin.starts_with(&format!("by {component} for ")))
}

/// The hash and the origin in the annotation of an object.
pub(super) fn parts<T: Resource>(object: &T) -> Option<(&str, &str)> {
    applied(object)?.split_once(' ')
}

fn origin<O: Owner>(component: &str, owner: &O) -> String {
    let (kind, group) = (O::kind(&()), O::group(&()));
    format!("by {component} for {kind}.{group} {}", Key::of(owner))
}
