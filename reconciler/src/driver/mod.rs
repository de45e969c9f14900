//! The one pass of a key, from the cache to the status.

mod key;
mod kind;

use futures::future::BoxFuture;
use reknit_apis::Key;

pub(crate) use self::{
    key::KeyDriver,
    kind::{KindDriver, Roles},
};
use crate::{Outcome, Result};

/// What a controller runs for each key, whatever its Kind.
pub(crate) trait Pass: Send + Sync {
    /// One pass, in a process that leads the key or does not.
    fn pass<'a>(&'a self, key: &'a Key, leading: bool) -> BoxFuture<'a, Result<Outcome>>;

    /// What is wrong with a key that no object of the controller can have.
    fn malformed(&self, _: &Key) -> Option<String> {
        None
    }

    /// The keys that a newly led bucket may hold work for.
    fn promoted(&self) -> Vec<Key>;

    /// Whether a key that fell due while nobody led it is looked at in the next term, beside what is promoted then.
    /// `led`: this process has led it before.
    fn is_owed(&self, key: &Key, led: bool) -> bool;
}
