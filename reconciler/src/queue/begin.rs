//! The decision at the start of a pass: it begins, or its key is held.
//!
//! The brake holds keys whose pass is not prompted, and a storm those that only this process causes. A held key occupies no
//! worker. If a cause is added to it, it is queued again, and so runs at once if that cause came from outside.

use std::sync::Arc;

use reknit_injection::internal::CurrentPass;
use tokio::time::Instant;

use super::{Causes, ClaimedKey, InARow, Queue, State, lanes::Lane};

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
            }
            state.count_storm_pass(&claimed.causes, &claimed.in_a_row);
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

    /// Returns the place of a pass among those that only this process has caused, as far as is known at its end.
    pub(crate) fn decide(&self, pass: &CurrentPass, causes: &Causes, at_begin: &InARow) -> InARow {
        if !at_begin.is_open {
            return at_begin.clone();
        }
        let mut state = self.0.state.lock();
        let state = &mut *state;
        let in_a_row = state.storms.decide(&pass.key, causes, pass.begun, &state.writers);
        state.count_storm_pass(causes, &in_a_row);
        pass.set_in_a_row(in_a_row.passes);
        in_a_row
    }

    /// Counts a pass, which ends now, if it creates objects. If it belongs to a storm of such passes and to no other one, sets
    /// that storm.
    pub(crate) fn count_creations(
        &self,
        pass: &CurrentPass,
        causes: &Causes,
        has_failed: bool,
        in_a_row: &mut InARow,
    ) {
        let mut state = self.0.state.lock();
        let state = &mut *state;
        let storm = state.storms.count_creations(pass, causes, has_failed, &state.writers);
        if in_a_row.storm.is_none() && storm.is_some() {
            in_a_row.storm = storm;
            state.count_storm_pass(causes, in_a_row);
        }
    }
}

impl State {
    fn count_storm_pass(&mut self, causes: &Causes, in_a_row: &InARow) {
        if let (Some(metrics), Some(_), Some(cause)) =
            (&mut self.metrics, &in_a_row.storm, causes.iter().next())
        {
            metrics.count_storm_pass(cause.labels());
        }
    }
}
