//! Counts dropped events and logs them at most once a minute.

use std::{mem, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::Counter;
use tokio::time::Instant;

use super::pending::PendingEvent;

const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The dropped events of one process.
#[derive(Clone)]
pub(super) struct DroppedEvents {
    total: Counter,
    unlogged: Arc<Mutex<Unlogged>>,
}

/// The events that were dropped since the last log line.
#[derive(Default)]
struct Unlogged {
    count: u64,
    last_logged: Option<Instant>,
}

impl DroppedEvents {
    pub(super) fn new(total: Counter) -> Self {
        Self { total, unlogged: Arc::default() }
    }

    pub(super) fn add(&self, pending: &PendingEvent, why: &str) {
        self.total.inc();
        let (count_to_log, timer_due) = {
            let mut unlogged = self.unlogged.lock();
            (unlogged.add(), unlogged.timer_due())
        };
        if let Some(due) = timer_due {
            self.log_at(due);
        }
        let Some(dropped) = count_to_log else { return };
        tracing::warn!(
            dropped,
            kind = pending.regarding.kind,
            namespace = pending.regarding.namespace,
            name = pending.regarding.name,
            reason = pending.event.reason,
            why,
            "events were dropped; the fields describe the latest"
        );
    }

    /// Logs, at the time `due`, how many events were dropped since the last log line. Logs nothing if none were.
    /// Does nothing outside a tokio runtime.
    fn log_at(&self, due: Instant) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let unlogged = self.unlogged.clone();
        drop(runtime.spawn(async move {
            tokio::time::sleep_until(due).await;
            let dropped = unlogged.lock().take();
            if dropped > 0 {
                tracing::warn!(dropped, "more events were dropped");
            }
        }));
    }
}

impl Unlogged {
    /// Counts one event. If no line was logged in the last minute, returns the count to log, and resets it.
    fn add(&mut self) -> Option<u64> {
        self.count += 1;
        let is_recent = self.last_logged.is_some_and(|logged| logged.elapsed() < LOG_INTERVAL);
        (!is_recent).then(|| self.take())
    }

    /// Returns the number of counted events, to be logged now, and resets it.
    fn take(&mut self) -> u64 {
        self.last_logged = Some(Instant::now());
        mem::take(&mut self.count)
    }

    /// The time at which to log the counted events, if only one is counted. `None` if none is counted, or if a timer is
    /// already set: the first counted event has set it.
    fn timer_due(&self) -> Option<Instant> {
        self.last_logged.filter(|_| self.count == 1).map(|logged| logged + LOG_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn dropped_events_are_logged_once_a_minute_with_their_number() {
        let mut unlogged = Unlogged::default();
        assert_eq!([unlogged.add(), unlogged.add(), unlogged.add()], [Some(1), None, None]);
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!([unlogged.add(), unlogged.add()], [Some(3), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_dropped_events_are_logged_even_if_none_follows() {
        let mut unlogged = Unlogged::default();
        assert_eq!((unlogged.add(), unlogged.timer_due()), (Some(1), None));
        assert_eq!((unlogged.add(), unlogged.timer_due()), (None, Some(Instant::now() + LOG_INTERVAL)));
        assert_eq!((unlogged.add(), unlogged.timer_due()), (None, None));
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!([unlogged.take(), unlogged.take()], [2, 0]);
    }
}
