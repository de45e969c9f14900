//! The permissions that leader election needs.

use reknit_injection::{Permission, Verb};

/// Returns the permissions that leader election needs in the system namespace, for the generated RBAC rules.
///
/// A Lease has a name for each controller and bucket, and `create` cannot be restricted to names, so the permission is
/// on all Leases of the namespace.
pub fn permissions() -> Vec<Permission> {
    vec![Permission::new("coordination.k8s.io", "leases", [Verb::Get, Verb::Create, Verb::Patch])]
}
