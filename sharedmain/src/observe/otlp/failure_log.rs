//! Logs failed exports: a warning at most once a minute, and a message when an export succeeds again.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::collector::ExportError;

const INTERVAL: Duration = Duration::from_secs(60);

/// Logs failures of one signal, metrics or traces, to one endpoint.
pub(super) struct FailureLog {
    signal: &'static str,
    endpoint: String,
    last_logged: Mutex<Option<Instant>>,
}

impl FailureLog {
    pub(super) fn new(signal: &'static str, endpoint: String) -> Self {
        Self { signal, endpoint, last_logged: Mutex::default() }
    }

    /// Logs the failure, unless another was logged in the last minute.
    pub(super) fn record_failure(&self, error: &ExportError) {
        if self.start_interval_if_due() {
            let Self { signal, endpoint, .. } = self;
            tracing::warn!(
                "failed to export {signal} to {endpoint}: {error}; further failures are logged once a minute"
            );
        }
    }

    /// Logs the success if a failure was logged since the last success.
    pub(super) fn record_success(&self) {
        if self.last_logged.lock().take().is_some() {
            tracing::info!("exporting {} to {} again", self.signal, self.endpoint);
        }
    }

    /// Returns whether to log a failure now, and if so, starts the interval until the next.
    fn start_interval_if_due(&self) -> bool {
        let mut last_logged = self.last_logged.lock();
        let is_due = last_logged.is_none_or(|time| time.elapsed() >= INTERVAL);
        if is_due {
            *last_logged = Some(Instant::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_are_logged_at_once_then_once_a_minute_and_at_once_after_a_success() {
        let log = FailureLog::new("traces", "http://collector:4317".into());
        let mut count = 0;
        for _ in 0..180 {
            count += usize::from(log.start_interval_if_due());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(count, 3);
        log.record_success();
        assert!(log.start_interval_if_due());
    }
}
