//! Tests of single reconciles: the state before, the reconcile, and its effects.

mod authorization;
mod comparable;
mod effects;
mod given;
mod mutation;
mod permissions;
mod recorded;
mod rows;
#[cfg(test)]
mod tests;
mod want;

pub use self::{
    effects::Effects,
    given::{Given, given, nothing},
    permissions::each_permission_is_needed,
    recorded::{Recorded, recorded},
    rows::{Table, table},
    want::Want,
};
