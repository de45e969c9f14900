//! The decision at the start of a pass: it begins, or its key is held.
//!
//! The brake holds keys whose pass is not prompted, and a storm those that only this process causes. A held key occupies no
//! worker. If a cause is added to it, it is queued again, and so runs at once if that cause came from outside.

use std::sync::Arc;

use tokio::time::Instant;

use super::{ClaimedKey, Queue, lanes::Lane};

impl Queue {
    /// Begins the pass of a claimed key, or ends the claim and holds the key.
    ///
    /// # Errors
    ///
    /// The key is held. The error contains the limit of the brake, in changes per minute, if the caller has to report that
    /// the brake now holds keys.
    pub(crate) fn begin_or_hold(&self, mut claimed: ClaimedKey) -> Result<ClaimedKey, Option<u32>> {
        let (mut state, now) = (self.0.state.lock(), Instant::now());
        let state = &mut *state;
        let (lane, is_first, report) =
            if let Some(is_first) = state.storms.hold(&claimed.key, &claimed.causes, now) {
                (Lane::HeldByStorm, is_first, None)
            } else if let Some(brake) = state.brake.as_mut().filter(|_| !claimed.causes.is_prompted())
                && !brake.allows(now)
            {
                let is_first = state.lanes.len_of(Lane::HeldByBrake) == 0;
                (Lane::HeldByBrake, is_first, is_first.then(|| brake.report()).flatten())
            } else {
                claimed.in_a_row = state.storms.begin(&claimed.key, &claimed.causes, now, &state.writers);
                if let Some(metrics) = &mut state.metrics {
                    claimed.causes.iter().for_each(|cause| metrics.count_cause(cause.labels()));
                    let cause = claimed.causes.iter().next().filter(|_| claimed.in_a_row.storm.is_some());
                    cause.into_iter().for_each(|cause| metrics.count_storm_pass(cause.labels()));
                }
                return Ok(claimed);
            };
        state.running.retain(|(key, _)| *key != claimed.key);
        let causes = Arc::unwrap_or_clone(std::mem::take(&mut claimed.causes));
        state.lanes.hold(&claimed.key, lane, causes, now, &state.writers);
        state.report_depth();
        claimed.has_ended = true;
        if is_first {
            self.0.changed.notify_waiters(); // to wait until it is released
        }
        Err(report)
    }
}
