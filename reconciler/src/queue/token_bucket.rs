//! The token bucket that limits the retries of a queue.

use std::time::Duration;

use tokio::time::Instant;

/// The time in which a token is added: ten retries a second.
const PERIOD: Duration = Duration::from_millis(100);

/// The maximum number of tokens.
const BURST: u32 = 100;

const NO_TOKENS: u32 = 0;

/// A token bucket with the rate and the burst of client-go's default controller rate limiter.
///
/// It holds time instead of a number of tokens, so it has no rounding errors.
#[derive(Debug)]
pub(super) struct TokenBucket {
    /// The time that is saved up. A token costs one [`PERIOD`].
    saved: Duration,
    /// The time at which `saved` was last computed.
    updated_at: Instant,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub(super) fn new(now: Instant) -> Self {
        Self { saved: PERIOD * BURST, updated_at: now }
    }

    /// Takes a token. Returns false if there is none yet.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.update(now, NO_TOKENS);
        let left = self.saved.checked_sub(PERIOD);
        self.saved = left.unwrap_or(self.saved);
        left.is_some()
    }

    /// Adds tokens, up to the burst.
    pub(super) fn add(&mut self, tokens: u32, now: Instant) {
        self.update(now, tokens);
    }

    /// The time from which there is a token, unless tokens are added before.
    pub(super) fn next_token(&self) -> Instant {
        self.updated_at + PERIOD.saturating_sub(self.saved)
    }

    /// Adds the time since the last update and these tokens, up to the burst.
    fn update(&mut self, now: Instant, tokens: u32) {
        let elapsed = now.saturating_duration_since(self.updated_at);
        self.saved = self.saved.saturating_add(elapsed + PERIOD * tokens).min(PERIOD * BURST);
        self.updated_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn there_are_a_hundred_tokens_and_ten_more_each_second() {
        let mut now = Instant::now();
        let mut bucket = TokenBucket::new(now);
        let mut take_all = |now| (0..200).filter(|_| bucket.take(now)).count();
        assert_eq!((take_all(now), take_all(now)), (100, 0));
        now += Duration::from_secs(1);
        assert_eq!(take_all(now), 10);
        now += Duration::from_secs(3600);
        assert_eq!(take_all(now), 100);
        assert_eq!(bucket.next_token(), now + PERIOD);
        bucket.add(2, now);
        assert!(bucket.take(now) && bucket.take(now) && !bucket.take(now));
    }
}
