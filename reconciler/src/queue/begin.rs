//! The decision at the start of a pass: it begins, or its key is held.
//!
//! The brake holds keys whose pass is not prompted, and a storm those that only this process causes. A held key occupies no
//! worker. If a cause is added to it, it is queued again, and so runs at once if that cause came from outside.

use std::sync::Arc;

use tokio::time::Instant;

use super::{ClaimedKey, Queue, lanes::Lane};

impl Queue {
    /// Begins the pass of a claimed key, or ends the claim, holds the key and returns `None`.
    pub(crate) fn begin_or_hold(&self, mut claimed: ClaimedKey) -> Option<ClaimedKey> {
        let (mut state, now) = (self.0.state.lock(), Instant::now());
        let state = &mut *state;
        let (lane, is_first) = if let Some(is_first) = state.storms.hold(&claimed.key, &claimed.causes, now) {
            (Lane::HeldByStorm, is_first)
        } else if let Some(brake) = state.brake.as_mut().filter(|_| !claimed.causes.is_prompted())
            && !brake.allows(now)
        {
            (Lane::HeldByBrake, state.lanes.len_of(Lane::HeldByBrake) == 0)
        } else {
            claimed.in_a_row = state.storms.begin(&claimed.key, &claimed.causes, now, &state.writers);
            if let Some(metrics) = &mut state.metrics {
                claimed.causes.iter().for_each(|cause| metrics.count_cause(cause.labels()));
                let cause = claimed.causes.iter().next().filter(|_| claimed.in_a_row.storm.is_some());
                cause.into_iter().for_each(|cause| metrics.count_storm_pass(cause.labels()));
            }
            return Some(claimed);
        };
        state.running.retain(|(key, _)| *key != claimed.key);
        let causes = Arc::unwrap_or_clone(std::mem::take(&mut claimed.causes));
        state.lanes.hold(&claimed.key, lane, causes, now, &state.writers);
        state.report_depth();
        claimed.has_ended = true;
        if is_first {
            self.0.changed.notify_waiters(); // to wait until it is released
        }
        None
    }
}
