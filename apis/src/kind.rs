//! A Kind that a controller can reconcile, whatever its shape.

use std::fmt::Debug;

use kube::{
    Resource,
    core::{ClusterResourceScope, NamespaceResourceScope, object::HasStatus},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    condition::Conditions,
    duck::{DuckShaped, KRShaped},
};

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

/// A Kind that a controller can reconcile.
///
/// Every [`KRShaped`] Kind is one, and so are Kubernetes' own. Others, which have no conditions or no status at
/// all, say so in a line:
///
/// ```
/// use reknit_apis::Kind;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Note", namespaced)]
/// struct NoteSpec {
///     text: String,
/// }
///
/// impl Kind for Note {
///     type Status = ();
/// }
/// ```
///
/// A status without conditions is named, and read where it is kept:
///
/// ```
/// # use reknit_apis::Kind;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
/// # #[kube(group = "demo.reknit.dev", version = "v1", kind = "Foo", namespaced, status = "FooStatus")]
/// # struct FooSpec {}
/// # #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
/// # struct FooStatus {}
/// impl Kind for Foo {
///     type Status = FooStatus;
///     fn read_status(&self) -> Option<&FooStatus> {
///         self.status.as_ref()
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a Kind that a controller can reconcile",
    note = "write `impl KRShaped for {Self}` (conditions and observedGeneration) or `impl Kind for {Self}` (plain)"
)]
pub trait Kind:
    Resource<DynamicType = (), Scope: Scope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// What a pass may write: `()` where the controller writes no status.
    type Status: Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync;

    /// The status as it was read, if the object has one.
    fn read_status(&self) -> Option<&Self::Status> {
        None
    }

    /// Fills in what the spec leaves open, in memory, before a pass.
    fn default_in_place(&mut self) {}

    /// The conditions of a status, where the Kind has any.
    #[doc(hidden)]
    fn conditions(_: &mut Self::Status) -> Option<Conditions<'_>> {
        None
    }

    /// Notes that the status speaks of this generation, where the Kind keeps it.
    #[doc(hidden)]
    fn observe_generation(_: &mut Self::Status, _: Option<i64>) {}

    /// Gives each condition that says what it said before the time it had before.
    #[doc(hidden)]
    fn keep_transition_times(_: &mut Self::Status, _before: &Self::Status) {}

    /// Whether the two statuses are equal but for when their conditions changed.
    #[doc(hidden)]
    fn says_what(status: &Self::Status, other: &Self::Status) -> bool {
        status == other
    }
}

/// The status of a Kind: what a pass may write.
pub type StatusOf<K> = <K as Kind>::Status;

impl<K: KRShaped> Kind for K {
    type Status = <K as HasStatus>::Status;

    fn read_status(&self) -> Option<&Self::Status> {
        self.status()
    }

    fn default_in_place(&mut self) {
        self.set_defaults();
    }

    fn conditions(status: &mut Self::Status) -> Option<Conditions<'_>> {
        Some(K::CONDITIONS.manage(status))
    }

    fn observe_generation(status: &mut Self::Status, generation: Option<i64>) {
        status.duck_mut().observed_generation = generation;
    }

    fn keep_transition_times(status: &mut Self::Status, before: &Self::Status) {
        status.duck_mut().keep_transition_times(before.duck());
    }

    fn says_what(status: &Self::Status, other: &Self::Status) -> bool {
        if !status.duck().says_what(other.duck()) {
            return false;
        }
        let mut status = status.clone();
        status.duck_mut().clone_from(other.duck());
        status == *other
    }
}
