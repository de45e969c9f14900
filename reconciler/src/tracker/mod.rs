//! Tracks which key has read which object, and enqueues the key when that object changes.
//!
//! Knative's tracker keeps a read for three resync periods, so that forgotten reads expire. Here no read expires: it is
//! dropped after the first successful pass that does not repeat it, or with its observer. A read of a failed pass is also
//! dropped if the next pass fails without it.

mod any;
mod duck;
mod dynamic_kinds;
mod index;
#[cfg(test)]
mod tests;
mod tracked;
mod trackers;
mod used_kinds;

pub use self::{any::TrackedAny, duck::Duck, tracked::Tracked};
pub(crate) use self::{
    dynamic_kinds::{DynamicKinds, FoundKind, NotListedYet, Versions, group_and_version},
    index::Tracker,
    trackers::Trackers,
};
