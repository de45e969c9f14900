//! The permissions that leader election needs.

use reknit_injection::{Permission, Verb};

/// Returns the permissions that leader election needs in the system namespace, for the generated RBAC rules.
///
/// A Lease has a name for each controller, bucket and replica, and `create` cannot be restricted to names, so the
/// permission is on all Leases of the namespace. A replica deletes its own Lease when it stops, and those of dead
/// replicas.
pub fn permissions() -> Vec<Permission> {
    let verbs = [Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Patch, Verb::Delete];
    vec![Permission::new("coordination.k8s.io", "leases", verbs)]
}
