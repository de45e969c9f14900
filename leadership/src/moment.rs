//! A moment from which time is measured also while the machine is suspended.

use std::time::Duration;

use reknit_injection::internal::suspended;
use tokio::time::Instant;

/// A moment by the monotonic clock. That clock stops while the machine is suspended, and other replicas take the Leases
/// meanwhile. So the time of suspensions since the moment is added to what the clock measures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    at: Instant,
    suspended: Duration,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), suspended: suspended() }
    }

    /// The instant that will be this long after the moment, unless the machine is suspended again until then.
    pub(crate) fn after(self, duration: Duration) -> Instant {
        let later = self.at + duration;
        later.checked_sub(self.suspended_since()).unwrap_or(self.at)
    }

    /// The time for which the machine has been suspended since the moment.
    pub(crate) fn suspended_since(self) -> Duration {
        suspended().saturating_sub(self.suspended)
    }
}
