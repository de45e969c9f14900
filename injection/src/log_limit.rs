//! A limit on repeated log lines.

use std::time::Duration;

use tokio::time::Instant;

/// The interval at which a repeated line is logged.
pub(crate) const INTERVAL: Duration = Duration::from_secs(60);

/// Allows a new log line at once, and a repeated one once a minute. Holds the subject of the last line and its time.
#[derive(Debug)]
pub struct LogLimit<T = ()>(Option<(T, Instant)>);

impl<T> Default for LogLimit<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Clone + PartialEq> LogLimit<T> {
    /// Returns true if a line about this subject is to be logged now, and records it as the last line.
    pub fn allows(&mut self, subject: &T) -> bool {
        let now = Instant::now();
        let is_repeated = |(last, logged): &(T, Instant)| last == subject && now - *logged < INTERVAL;
        if self.0.as_ref().is_some_and(is_repeated) {
            return false;
        }
        self.0 = Some((subject.clone(), now));
        true
    }

    /// Returns the time from which on the last line may be repeated. `None` if nothing was logged.
    pub fn repeats_at(&self) -> Option<Instant> {
        self.0.as_ref().map(|(_, logged)| *logged + INTERVAL)
    }

    /// Forgets the last line, so that the next one is logged at once. Returns true if there was one.
    pub fn reset(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_repeated_line_is_logged_once_a_minute() {
        let mut limit = LogLimit::default();
        assert!(limit.allows(&"a"));
        tokio::time::advance(INTERVAL - Duration::from_secs(1)).await;
        assert!(!limit.allows(&"a"));
        assert!(limit.allows(&"b"));
        assert!(limit.allows(&"a"));
        tokio::time::advance(INTERVAL).await;
        assert!(limit.allows(&"a"));
        assert!(limit.reset());
        assert!(limit.allows(&"a"));
    }
}
