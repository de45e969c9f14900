//! Drivers, which run one pass of a key: from the cache to the status.

mod key;
mod kind;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ObjectReference;
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

    /// Returns a reference to the object of the key, for events. `None` for a controller without a Kind.
    fn reference(&self, _: &Key) -> Option<ObjectReference> {
        None
    }

    /// Returns the reason if no object of the controller can have this key.
    fn key_problem(&self, _: &Key) -> Option<String> {
        None
    }

    /// Returns true if the object of the key shows that a user has asked for its next pass.
    fn is_asked_for(&self, _: &Key) -> bool {
        false
    }

    /// Records an event about the object of a key that waits because too much changes without a prompt.
    fn report_held(&self, _: &Key, _per_minute: u32) {}

    /// Returns true if a process that does not lead a key observes it.
    fn observes_as_follower(&self) -> bool {
        false
    }

    /// Returns true if the key has no object, and only its leader observes the deletion.
    fn observes_deletion_of(&self, _: &Key) -> bool {
        false
    }

    /// The keys of all buckets to enqueue when a bucket is gained. The caller filters them by bucket.
    fn keys_to_promote(&self) -> Vec<Key>;

    /// Returns true if [`keys_to_promote`](Self::keys_to_promote) may lack a key that became due while this process did
    /// not lead it. The key is then postponed until this process leads it. `led_before`: this process was the last
    /// leader of the key.
    fn is_missed_by_promotion(&self, key: &Key, led_before: bool) -> bool;
}
