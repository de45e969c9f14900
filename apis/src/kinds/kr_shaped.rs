//! Kinds with the conventions of Knative: conditions and an observed generation.

use std::fmt::Debug;

use kube::{Resource, core::object::HasStatus};
use serde::{Serialize, de::DeserializeOwned};

use super::scope::Scope;
use crate::status::{ConditionSet, DuckShaped};

/// A Kind shaped as Knative's are: conditions, and the generation they speak of. Of either scope.
///
/// Each is a [`Kind`](crate::Kind): say `impl KRShaped` or `impl Kind`, never both. The crate's first page has a
/// whole example.
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
    /// The conditions that decide over an object of this Kind.
    const CONDITIONS: ConditionSet;

    /// Fills in what the spec leaves open, in memory, before a pass: an object may have been stored before a
    /// default existed. The metadata stays as it is, since what a pass writes goes to the object that it names.
    fn set_defaults(&mut self) {}
}
