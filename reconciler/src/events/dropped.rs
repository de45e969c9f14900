//! Counts dropped events and logs them at most once a minute.

use std::{mem, sync::Arc};

use parking_lot::Mutex;
use prometheus::Counter;
use reknit_injection::internal::LogLimit;
use tokio::time::Instant;

use super::pending::PendingEvent;

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
    limit: LogLimit,
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
            let count_to_log = unlogged.lock().take_due();
            if let Some(dropped) = count_to_log {
                tracing::warn!(dropped, "more events were dropped");
            }
        }));
    }
}

impl Unlogged {
    /// Counts one event. If no line was logged in the last minute, returns the count to log, and resets it.
    fn add(&mut self) -> Option<u64> {
        self.count += 1;
        self.take_due()
    }

    /// If events are counted and no line was logged in the last minute, returns their number, and resets it.
    fn take_due(&mut self) -> Option<u64> {
        (self.count > 0 && self.limit.allows(&())).then(|| mem::take(&mut self.count))
    }

    /// The time at which to log the counted events, if only one is counted. `None` if none is counted, or if a timer is
    /// already set: the first counted event has set it.
    fn timer_due(&self) -> Option<Instant> {
        self.limit.repeats_at().filter(|_| self.count == 1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn dropped_events_are_logged_once_a_minute_with_their_number() {
        let mut unlogged = Unlogged::default();
        assert_eq!([unlogged.add(), unlogged.add(), unlogged.add()], [Some(1), None, None]);
        tokio::time::advance(MINUTE).await;
        assert_eq!([unlogged.add(), unlogged.add()], [Some(3), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_dropped_events_are_logged_even_if_none_follows() {
        let mut unlogged = Unlogged::default();
        assert_eq!((unlogged.add(), unlogged.timer_due()), (Some(1), None));
        assert_eq!((unlogged.add(), unlogged.timer_due()), (None, Some(Instant::now() + MINUTE)));
        assert_eq!((unlogged.add(), unlogged.timer_due()), (None, None));
        tokio::time::advance(MINUTE).await;
        assert_eq!([unlogged.take_due(), unlogged.take_due()], [Some(2), None]);
    }
}
