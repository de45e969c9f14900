//! The rate limits of retries: an exponential backoff for each key, and a token bucket for the queue.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use reknit_apis::Key;
use tokio::time::Instant;

const FIRST_WAIT: Duration = Duration::from_millis(5);
const MAX_WAIT: Duration = Duration::from_secs(1000);
const RETRIES_PER_SECOND: f64 = 10.0;
const BURST: f64 = 100.0;

/// The retry limits of client-go's default controller rate limiter.
#[derive(Debug)]
pub(crate) struct Backoff {
    /// The number of consecutive failures of each key. A BTreeMap, since its memory shrinks with its number of keys.
    pub(super) failures: BTreeMap<Arc<Key>, u32>,
    tokens: f64,
    /// When `tokens` was last computed.
    tokens_at: Instant,
}

impl Backoff {
    pub(crate) fn new(now: Instant) -> Self {
        Self { failures: BTreeMap::new(), tokens: BURST, tokens_at: now }
    }

    /// Counts a failure, and returns the wait until the retry: the longer of the two limits, but at most `at_most`.
    pub(crate) fn failed(&mut self, key: &Arc<Key>, at_most: Option<Duration>, now: Instant) -> Duration {
        let at_most = at_most.unwrap_or(Duration::MAX);
        let failures = self.failures.entry(key.clone()).or_default();
        let key_wait =
            FIRST_WAIT.saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX)).min(MAX_WAIT);
        *failures = failures.saturating_add(1);
        key_wait.min(at_most).max(self.take_token(at_most, now))
    }

    /// Resets the key's failures, after a success or an error that is not retried.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.failures.remove(key);
    }

    /// Takes a token, and returns the wait for it. If that is longer than `at_most`, returns `at_most` and takes no
    /// token: otherwise the waits of other keys would grow without bound.
    fn take_token(&mut self, at_most: Duration, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.tokens_at).as_secs_f64();
        self.tokens_at = now;
        self.tokens = (self.tokens + elapsed * RETRIES_PER_SECOND).min(BURST);
        let wait = Duration::try_from_secs_f64((1.0 - self.tokens) / RETRIES_PER_SECOND).unwrap_or_default();
        if wait > at_most {
            return at_most;
        }
        self.tokens -= 1.0;
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Arc<Key> {
        Arc::new(Key::new("default", name))
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_5_ms_and_twice_as_long_after_each_failure_up_to_1000_s() {
        let mut backoff = Backoff::new(Instant::now());
        let mut fail = || {
            let later = Instant::now() + Duration::from_secs(3600); // when the token bucket is full
            backoff.failed(&key("a"), None, later)
        };
        let waits: Vec<_> = (0..5).map(|_| fail().as_millis()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80]);
        assert_eq!((0..40).map(|_| fail()).last(), Some(MAX_WAIT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_forgotten_key_starts_at_the_first_wait_and_uses_no_memory() {
        let mut backoff = Backoff::new(Instant::now());
        backoff.failed(&key("a"), None, Instant::now());
        backoff.forget(&key("a"));
        assert!(backoff.failures.is_empty());
        assert_eq!(backoff.failed(&key("a"), None, Instant::now()), FIRST_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_with_a_limit_do_not_delay_other_keys_beyond_it() {
        let mut backoff = Backoff::new(Instant::now());
        let limit = Duration::from_secs(30);
        for _ in 0..20 {
            let waits: Vec<_> = (0..1000)
                .map(|n| backoff.failed(&key(&n.to_string()), Some(limit), Instant::now()))
                .collect();
            assert!(waits.iter().all(|wait| *wait <= limit));
            assert_eq!(waits[999], limit);
            tokio::time::advance(limit).await;
        }
        assert!(backoff.failed(&key("another"), None, Instant::now()) <= limit);
    }

    #[tokio::test(start_paused = true)]
    async fn all_keys_together_have_a_burst_of_a_hundred_and_ten_retries_a_second() {
        let mut backoff = Backoff::new(Instant::now());
        let waits: Vec<_> =
            (0..120).map(|n| backoff.failed(&key(&n.to_string()), None, Instant::now())).collect();
        assert!(waits[..100].iter().all(|wait| *wait == FIRST_WAIT));
        assert_eq!(waits[109].as_millis(), 1000);
        assert_eq!(waits[119].as_millis(), 2000);
        tokio::time::advance(Duration::from_secs(12)).await;
        assert_eq!(backoff.failed(&key("late"), None, Instant::now()), FIRST_WAIT);
    }
}
