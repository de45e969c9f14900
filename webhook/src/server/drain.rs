//! Draining: the time between the order to stop and the end of the server.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// Whether the webhook is draining, and when the last request came. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Drain(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    draining: bool,
    last_request: Option<Instant>,
}

impl Drain {
    /// Starts draining, and returns once no request has come for `period`, or after twice that time.
    pub(crate) async fn quiet(&self, period: Duration) {
        let start = Instant::now();
        self.0.lock().draining = true;
        loop {
            let last = self.0.lock().last_request.unwrap_or(start).max(start);
            let longest = period.saturating_mul(2).saturating_sub(start.elapsed());
            let left = period.saturating_sub(last.elapsed()).min(longest);
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.lock().draining
    }

    /// Notes that a request has come or was answered.
    pub(crate) fn note_request(&self) {
        self.0.lock().last_request = Some(Instant::now());
    }
}
