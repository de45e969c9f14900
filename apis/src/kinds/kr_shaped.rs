//! Kinds with the conventions of Knative: conditions and an observed generation.

use std::fmt::Debug;

use kube::{Resource, core::object::HasStatus};
use serde::{Serialize, de::DeserializeOwned};

use super::scope::Scope;
use crate::status::{ConditionSet, DuckShaped};

/// A Kind whose status has conditions and an observed generation, as Knative's have. Of either scope.
///
/// It implements [`Kind`](crate::Kind) too, so implement one of the two and not both. The documentation of the crate has
/// a complete example.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a Knative-shaped Kind",
    note = "write `impl KRShaped for {Self}`, naming its conditions; its status must embed `DuckStatus`"
)]
pub trait KRShaped:
    Resource<DynamicType = (), Scope: Scope>
    + HasStatus<Status: DuckShaped>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The conditions that decide whether an object is ready.
    const CONDITIONS: ConditionSet;

    /// Sets defaults in memory before a pass, since an object may have been stored before a default existed. Leave the
    /// metadata unchanged: the writes of the pass go to the object that it names.
    fn set_defaults(&mut self) {}
}
