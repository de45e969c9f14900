//! Drivers, which run one pass of a key: from the cache to the status.

mod key;
mod kind;

use futures::future::BoxFuture;
use reknit_apis::Key;

pub(crate) use self::{
    key::KeyDriver,
    kind::{KindDriver, Roles},
};
use crate::{Outcome, Result};

/// The part that this process plays in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassMode {
    /// This process leads the key: it reconciles or finalizes.
    Leading,
    /// This process does not lead the key: at most, it observes.
    Observing,
}

/// Runs the passes of a controller, whatever its Kind.
pub(crate) trait Driver: Send + Sync {
    /// Runs one pass.
    fn run_pass<'a>(&'a self, key: &'a Key, mode: PassMode) -> BoxFuture<'a, Result<Outcome>>;

    /// Returns the reason if no object of the controller can have this key.
    fn key_problem(&self, _: &Key) -> Option<String> {
        None
    }

    /// The keys of all buckets to enqueue when a bucket is gained. The caller filters them by bucket.
    fn keys_to_promote(&self) -> Vec<Key>;

    /// Returns true if a key that becomes due while no leader is known is postponed until this process leads it, in
    /// addition to the promoted keys. `this_process_led_before`: this process has led the key's bucket before.
    fn should_postpone(&self, key: &Key, this_process_led_before: bool) -> bool;
}
