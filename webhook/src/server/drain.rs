//! Draining of the server, between the signal to stop and the end of the server.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// The state of draining and the time of the last request or answer. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Drain(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_draining: bool,
    last_activity: Option<Instant>,
}

impl Drain {
    /// Starts draining, and returns once there has been no request and no answer for `period`, or after twice that
    /// time.
    pub(crate) async fn drain(&self, period: Duration) {
        let start = Instant::now();
        self.0.lock().is_draining = true;
        loop {
            let last_activity = self.0.lock().last_activity.unwrap_or(start).max(start);
            let until_deadline = period.saturating_mul(2).saturating_sub(start.elapsed());
            let left = period.saturating_sub(last_activity.elapsed()).min(until_deadline);
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.lock().is_draining
    }

    /// Records the time of a request or an answer.
    pub(crate) fn record_activity(&self) {
        self.0.lock().last_activity = Some(Instant::now());
    }
}
