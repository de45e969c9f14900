//! The state of a child for which no request is needed.

use tokio::time::Instant;

use crate::status::SEND_AGAIN_AFTER;

/// The state of a child after a request, which is not repeated while the child has this state.
pub(super) struct UpToDate {
    /// A hash of the request and of the stored content.
    hash: u64,
    /// The time at which the request is repeated. `None` if the child has all values that were sent.
    until: Option<Instant>,
}

impl UpToDate {
    /// The state of a child that has all values that were sent.
    pub(super) fn as_sent(hash: u64) -> Self {
        Self { hash, until: None }
    }

    /// The state of a child in which the API server has stored other values. It may store those that were sent later: once
    /// the definition of the Kind has all fields, or an admission webhook no longer changes them.
    pub(super) fn unlike_sent(hash: u64) -> Self {
        Self { hash, until: Some(Instant::now() + SEND_AGAIN_AFTER) }
    }

    /// Returns true if a request with this hash need not be sent.
    pub(super) fn covers(&self, hash: u64) -> bool {
        self.hash == hash && self.until.is_none_or(|until| Instant::now() < until)
    }
}
