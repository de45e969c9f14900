//! A claimed key, whose pass runs.

use std::{ops::Deref, sync::Arc};

use reknit_apis::Key;
use tokio::time::Instant;

use super::{Causes, InARow, Queue, retries};

/// A key that a worker processes. It is not claimed again until this is dropped.
pub(crate) struct ClaimedKey {
    pub(crate) key: Arc<Key>,
    pub(crate) causes: Arc<Causes>,
    pub(crate) in_a_row: InARow,
    /// The time of the claim by the clock of the queue.
    pub(super) claimed_at: Instant,
    /// True once the key is no longer claimed, since it is held.
    pub(super) has_ended: bool,
    pub(super) queue: Queue,
}

impl ClaimedKey {
    /// Declares the pass to be prompted, for a reason that is not among the causes.
    pub(crate) fn set_prompted(&mut self) {
        if !self.causes.is_prompted() {
            Arc::make_mut(&mut self.causes).set_prompted();
        }
    }
}

impl Deref for ClaimedKey {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.key
    }
}

impl Drop for ClaimedKey {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(key = %self.key, "a pass panicked while it was dropped: its key is retried");
            self.queue.retry(self, retries::ANY_WAIT, "a panic");
        }
        if self.has_ended {
            return;
        }
        let is_claimable = self.queue.0.state.lock().done(&self.key);
        if is_claimable {
            self.queue.0.changed.notify_one();
        }
    }
}
