//! The parts of a status that Knative-shaped Kinds have in common.

mod bounded;
mod condition;
mod condition_set;
mod duck;
mod status_conditions;

pub use self::{
    bounded::bound_conditions,
    condition::{Condition, ConditionStatus, Severity},
    condition_set::{ConditionSet, Conditions, RemoveConditionError},
    duck::{DuckShaped, DuckStatus},
    status_conditions::StatusConditions,
};
