//! The scope of a Kind, namespaced or cluster-scoped, at compile time.

use kube::core::{ClusterResourceScope, NamespaceResourceScope};

/// Namespaced or cluster-scoped, known at compile time.
#[diagnostic::on_unimplemented(message = "`{Self}` is neither namespaced nor cluster-scoped")]
pub trait Scope: 'static {
    /// Whether objects of this scope live in a namespace.
    const NAMESPACED: bool;
}

impl Scope for NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

impl Scope for ClusterResourceScope {
    const NAMESPACED: bool = false;
}

/// An object of this scope can name one of that scope without saying a namespace.
#[diagnostic::on_unimplemented(
    message = "a cluster-scoped object has no namespace in which to look",
    note = "say the namespace: `get_in(object, namespace, name)`"
)]
pub trait Sees<Other> {}

impl<S> Sees<ClusterResourceScope> for S {}
impl Sees<NamespaceResourceScope> for NamespaceResourceScope {}

/// An object of this scope can be controlled by one of that scope: Kubernetes deletes a cluster-scoped object whose owner
/// is namespaced, since it looks for the owner in no namespace.
#[diagnostic::on_unimplemented(message = "a namespaced object cannot control a cluster-scoped one")]
pub trait OwnedBy<Owner> {}

impl<S> OwnedBy<ClusterResourceScope> for S {}
impl OwnedBy<NamespaceResourceScope> for NamespaceResourceScope {}
