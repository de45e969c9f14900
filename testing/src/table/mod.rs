//! Table tests: the effects of one reconcile on given objects.

mod account;
mod given;
mod input;
mod passed;
mod rows;
#[cfg(test)]
mod tests;
mod want;

pub use self::{
    given::{Given, given, nothing},
    passed::Passed,
    rows::{Table, table},
    want::Want,
};
