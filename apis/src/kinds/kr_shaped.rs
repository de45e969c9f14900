//! Kinds with the conventions of Knative: conditions and an observed generation.

use std::fmt::Debug;

use kube_core::{Resource, object::HasStatus};
use serde::{Serialize, de::DeserializeOwned};

use super::scope::Scope;
use crate::status::{ConditionSet, DuckShaped};

/// A Kind with Knative's conditions and `observedGeneration`. Every `KRShaped` type also implements
/// [`Kind`](crate::Kind).
///
/// [`kind!`](crate::kind) implements it in one line.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a Knative-shaped Kind",
    note = "declare it: `kind!({Self} {{ status: YourStatus, conditions: knative(duck) }});`, where `duck` is the field of the status that holds a `DuckStatus`"
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
    /// The condition set of this Kind.
    const CONDITIONS: ConditionSet;

    /// Implements [`Kind::set_defaults`](crate::Kind::set_defaults).
    #[doc(hidden)]
    fn set_knative_defaults(&mut self) {}
}
