//! Tests of single reconciles: the state before, the reconcile, and its effects.

mod effects;
mod given;
mod mutation;
mod passed;
mod permissions;
mod rows;
#[cfg(test)]
mod tests;
mod want;

pub use self::{
    given::{Given, given, nothing},
    passed::Passed,
    permissions::each_permission_is_needed,
    rows::{Table, table},
    want::Want,
};
