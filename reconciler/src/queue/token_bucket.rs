//! A token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket, which may be in debt.
///
/// It holds the time at which it is full instead of a number of tokens, so it has no rounding errors.
#[derive(Debug)]
pub(super) struct TokenBucket {
    /// The time in which a token is added.
    period: Duration,
    /// The time from which the bucket is full.
    full_at: Instant,
    /// The time in which all tokens but one are added.
    slack: Duration,
}

impl TokenBucket {
    /// Creates a full bucket, to which a token is added in each period.
    pub(super) fn new(period: Duration, burst: u32, now: Instant) -> Self {
        Self { period, full_at: now, slack: period * burst.saturating_sub(1) }
    }

    /// Takes a token. Returns false if there is none yet.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let has_token = self.has_token(now);
        self.spend(u32::from(has_token), now);
        has_token
    }

    /// Returns true if there is a token.
    pub(super) fn has_token(&self, now: Instant) -> bool {
        self.full_at <= now + self.slack
    }

    /// Takes tokens, whether there are enough or not.
    pub(super) fn spend(&mut self, tokens: u32, now: Instant) {
        self.full_at = self.full_at.max(now) + self.period.saturating_mul(tokens);
    }

    /// Adds tokens, up to the burst.
    pub(super) fn add(&mut self, tokens: u32, now: Instant) {
        self.full_at = self.full_at.checked_sub(self.period.saturating_mul(tokens)).unwrap_or(now).max(now);
    }

    /// The time from which there is a token, unless tokens are added or taken before.
    pub(super) fn next_token(&self) -> Instant {
        self.full_at.checked_sub(self.slack).unwrap_or(self.full_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn there_are_a_hundred_tokens_and_ten_more_each_second() {
        let mut now = Instant::now();
        let period = Duration::from_millis(100);
        let mut bucket = TokenBucket::new(period, 100, now);
        let mut take_all = |now| (0..200).filter(|_| bucket.take(now)).count();
        assert_eq!((take_all(now), take_all(now)), (100, 0));
        now += Duration::from_secs(1);
        assert_eq!(take_all(now), 10);
        now += Duration::from_secs(3600);
        assert_eq!(take_all(now), 100);
        assert_eq!(bucket.next_token(), now + period);
        bucket.add(2, now);
        assert!(bucket.take(now) && bucket.take(now) && !bucket.take(now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_debt_is_paid_before_there_is_a_token_again() {
        let mut now = Instant::now();
        let mut bucket = TokenBucket::new(Duration::from_secs(1), 5, now);
        bucket.spend(25, now);
        assert!(!bucket.take(now));
        now += Duration::from_secs(20);
        assert!(!bucket.has_token(now));
        now += Duration::from_secs(1);
        assert!(bucket.take(now) && !bucket.take(now));
    }
}
