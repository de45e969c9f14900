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

/// Runs the passes of a controller, whatever its Kind.
pub(crate) trait Driver: Send + Sync {
    /// Runs one pass. `leading`: this process leads the key.
    fn run_pass<'a>(&'a self, key: &'a Key, leading: bool) -> BoxFuture<'a, Result<Outcome>>;

    /// Returns why no object of the controller can have this key, if so.
    fn key_problem(&self, _: &Key) -> Option<String> {
        None
    }

    /// The keys to enqueue when a bucket is gained. The caller filters them by bucket.
    fn keys_to_promote(&self) -> Vec<Key>;

    /// Returns true if a key that becomes due while no leader is known is postponed until this process leads it, in
    /// addition to the promoted keys. `led_before`: this process has led the key before.
    fn should_postpone(&self, key: &Key, led_before: bool) -> bool;
}
