//! The state of a bucket in this process.

mod pass_guard;
mod reporter;
mod state;
mod writer;

pub(crate) use self::{
    pass_guard::PassGuard,
    reporter::BucketReporter,
    state::{BucketState, BucketStates, Leader},
    writer::BucketWriter,
};
