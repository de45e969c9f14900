//! One pass of a key, from the cache to the status.

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
pub(crate) trait Pass: Send + Sync {
    /// Runs one pass, in a process that leads the key or does not.
    fn pass<'a>(&'a self, key: &'a Key, leading: bool) -> BoxFuture<'a, Result<Outcome>>;

    /// The fault of a key that no object of the controller can have.
    fn malformed(&self, _: &Key) -> Option<String> {
        None
    }

    /// The keys that may need a pass when a bucket is gained.
    fn promoted(&self) -> Vec<Key>;

    /// Returns true if a key that became due without a known leader gets a pass in the next term, besides the promoted keys.
    /// `led_before`: this process has led it before.
    fn is_owed(&self, key: &Key, led_before: bool) -> bool;
}
