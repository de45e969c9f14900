//! The state of a bucket in this process.

mod pass_guard;
mod reporter;
mod state;
mod writer;

pub use self::{pass_guard::PassGuard, state::Leader, writer::BucketWriter};
pub(crate) use self::{
    reporter::BucketReporter,
    state::{BucketState, BucketStates},
};
