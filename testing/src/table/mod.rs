//! Table tests: given these objects, one pass of this controller over this key does that.

mod given;
mod passed;

pub use self::{
    given::{Given, given, nothing},
    passed::Passed,
};
