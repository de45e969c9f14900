//! The state of a bucket in this process.

mod reporter;
mod running_pass;
mod state;
mod writer;

pub(crate) use self::{
    reporter::BucketReporter,
    running_pass::RunningPass,
    state::{BucketState, BucketStates, Leader},
    writer::BucketWriter,
};
