//! The scope of a Kind, namespaced or cluster-scoped, at compile time.

use kube_core::{ClusterResourceScope, DynamicResourceScope, NamespaceResourceScope};

/// The scope of a Kind.
#[diagnostic::on_unimplemented(message = "`{Self}` is neither namespaced nor cluster-scoped")]
pub trait Scope: 'static {
    /// True if objects of this scope are in a namespace.
    const NAMESPACED: bool;
}

impl Scope for NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

impl Scope for ClusterResourceScope {
    const NAMESPACED: bool = false;
}

/// Implemented by scopes whose objects can refer to objects of another scope without naming a namespace.
#[diagnostic::on_unimplemented(
    message = "a cluster-scoped object has no namespace to look in",
    note = "pass the namespace: `get_in(object, namespace, name)`"
)]
pub trait Sees<Other> {}

impl<S> Sees<ClusterResourceScope> for S {}
impl Sees<NamespaceResourceScope> for NamespaceResourceScope {}

/// Implemented by scopes whose objects can be controlled by objects of another scope. Kubernetes' garbage collector
/// looks for the owner of a cluster-scoped object outside all namespaces, so it deletes such an object if the owner is
/// namespaced.
#[diagnostic::on_unimplemented(message = "a namespaced object cannot control a cluster-scoped one")]
pub trait OwnedBy<Owner> {}

impl<S> OwnedBy<ClusterResourceScope> for S {}
impl OwnedBy<NamespaceResourceScope> for NamespaceResourceScope {}
/// A Kind that is known only at run time has this scope. The rule is then checked at run time.
impl OwnedBy<NamespaceResourceScope> for DynamicResourceScope {}
