//! Table tests: given these objects, one pass of this controller over this key does that.

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
