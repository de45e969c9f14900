//! The failed keys that wait for their retry.
//!
//! As in client-go, a retry is limited twice: by the [backoff](Backoff) of its key, and together with all other retries
//! by a [token bucket](TokenBucket) of ten retries a second and a burst of a hundred. In client-go a key reserves its
//! token when it fails. After the outage of a dependency, hundreds of keys have then reserved the tokens of the next
//! minute and wait, although every retry would succeed.
//!
//! Here a key takes its token only after its backoff, and a success of a key that had failed adds two: the one that the
//! retry took, and another. So while retries succeed, each allows two more, and the rate doubles with every round of
//! passes until the workers are the limit. Once less than half of the retries succeed, the bucket runs empty and the
//! rate falls back to ten a second.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use reknit_apis::Key;
use tokio::time::Instant;

use super::{backoff::Backoff, delayed::Delayed, token_bucket::TokenBucket};

/// The number of tokens that the success of a key adds if it had failed before.
const TOKENS_FOR_SUCCESS: u32 = 2;
/// The wait of a retry that nothing but the backoff limits.
pub(super) const ANY_WAIT: RangeInclusive<Duration> = Duration::ZERO..=Duration::MAX;

/// The failed keys and their limits.
#[derive(Debug)]
pub(super) struct Retries {
    backoff: Backoff,
    bucket: TokenBucket,
    /// The keys by the end of their backoff. After the backoff, they wait for a token.
    waiting: Delayed,
    /// The waiting keys whose error limits the wait, by their deadline. At its deadline a key is retried without a
    /// token: the wait for a token could exceed the limit.
    deadlines: Delayed,
}

impl Retries {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            backoff: Backoff::default(),
            bucket: TokenBucket::new(now),
            waiting: Delayed::default(),
            deadlines: Delayed::default(),
        }
    }

    /// Adds a failed key, to be retried after its backoff and with a token, but within the limits of `wait`. Returns
    /// true if the next retry may be due earlier than before.
    pub(super) fn failed(&mut self, key: &Arc<Key>, wait: RangeInclusive<Duration>, now: Instant) -> bool {
        let (least, most) = wait.into_inner();
        let wait = self.backoff.failed(key).clamp(least, most);
        // A deadline beyond the range of the clock does not limit the wait.
        let is_first_deadline =
            now.checked_add(most).is_some_and(|deadline| self.deadlines.add(key.clone(), deadline));
        self.waiting.add(key.clone(), now + wait) || is_first_deadline
    }

    /// Resets the key's backoff and drops its retry, after a success. Returns true if other retries may be due earlier
    /// than before.
    pub(super) fn succeeded(&mut self, key: &Key, now: Instant) -> bool {
        let had_failed = self.forget(key);
        if had_failed {
            self.bucket.add(TOKENS_FOR_SUCCESS, now);
        }
        had_failed && self.waiting.next_due().is_some()
    }

    /// Resets the key's backoff and drops its retry. Returns true if the key had failed.
    pub(super) fn forget(&mut self, key: &Key) -> bool {
        self.waiting.remove(key);
        self.deadlines.remove(key);
        self.backoff.forget(key)
    }

    /// Removes and returns a key whose retry is due, if any. Takes a token unless the key has reached its deadline.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Arc<Key>> {
        if let Some(key) = self.deadlines.pop_due(now) {
            self.waiting.remove(&key);
            return Some(key);
        }
        let has_waited = self.waiting.next_due().is_some_and(|due| due <= now);
        if !has_waited || !self.bucket.take(now) {
            return None;
        }
        let key = self.waiting.pop_due(now)?;
        self.deadlines.remove(&key);
        Some(key)
    }

    /// The time at which the next retry is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.waiting.next_due().map(|due| due.max(self.bucket.next_token()));
        waiting.into_iter().chain(self.deadlines.next_due()).min()
    }

    /// Drops all retries.
    pub(super) fn clear(&mut self) {
        (self.waiting, self.deadlines) = (Delayed::default(), Delayed::default());
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.backoff.is_empty() && self.next_due().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Arc<Key> {
        Arc::new(Key::new("default", &n.to_string()))
    }

    /// Adds failed keys with these numbers.
    fn fail(retries: &mut Retries, numbers: std::ops::Range<usize>, wait: RangeInclusive<Duration>) {
        for n in numbers {
            retries.failed(&key(n), wait.clone(), Instant::now());
        }
    }

    /// Removes the keys that are due now, and returns their number.
    fn pop_all(retries: &mut Retries) -> usize {
        std::iter::from_fn(|| retries.pop_due(Instant::now())).count()
    }

    async fn advance(seconds: f64) {
        tokio::time::advance(Duration::from_secs_f64(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn all_keys_together_have_a_burst_of_a_hundred_and_ten_retries_a_second() {
        let mut retries = Retries::new(Instant::now());
        fail(&mut retries, 0..120, ANY_WAIT);
        assert_eq!(pop_all(&mut retries), 0, "each key waits for its backoff");
        advance(0.005).await;
        assert_eq!(pop_all(&mut retries), 100);
        assert_eq!(retries.next_due(), Some(Instant::now() + Duration::from_millis(100)));
        advance(1.0).await;
        assert_eq!(pop_all(&mut retries), 10);
        advance(1.0).await;
        assert_eq!((pop_all(&mut retries), retries.next_due()), (10, None));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_with_a_limit_are_due_within_it_and_do_not_delay_other_keys() {
        let mut retries = Retries::new(Instant::now());
        let limit = Duration::from_secs(30);
        for _ in 0..20 {
            fail(&mut retries, 0..1000, Duration::ZERO..=limit);
            let mut due = 0;
            for _ in 0..30 {
                advance(1.0).await;
                due += pop_all(&mut retries);
            }
            assert_eq!(due, 1000, "each exactly once");
        }
        retries.failed(&key(1000), ANY_WAIT, Instant::now());
        advance(1.0).await;
        assert_eq!(pop_all(&mut retries), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn each_success_of_a_failed_key_allows_two_more_retries() {
        let mut retries = Retries::new(Instant::now());
        fail(&mut retries, 0..300, ANY_WAIT);
        advance(0.01).await;
        assert_eq!(pop_all(&mut retries), 100);
        let now = Instant::now();
        assert!(!retries.succeeded(&key(1000), now), "a key that had not failed adds nothing");
        assert!(retries.succeeded(&key(0), now));
        assert_eq!(pop_all(&mut retries), 2);
        (1..3).for_each(|n| assert!(retries.succeeded(&key(n), now)));
        assert_eq!(pop_all(&mut retries), 4);
        for n in 3..90 {
            retries.succeeded(&key(n), now);
        }
        assert_eq!(pop_all(&mut retries), 100, "at most the burst");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_at_least_as_long_as_the_server_asked() {
        let mut retries = Retries::new(Instant::now());
        let asked = Duration::from_secs(10);
        retries.failed(&key(1), asked..=Duration::MAX, Instant::now());
        retries.failed(&key(2), asked..=asked, Instant::now());
        advance(9.9).await;
        assert_eq!(pop_all(&mut retries), 0);
        advance(0.1).await;
        assert_eq!(pop_all(&mut retries), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_succeeds_before_its_retry_is_not_retried() {
        let mut retries = Retries::new(Instant::now());
        retries.failed(&key(1), ANY_WAIT, Instant::now());
        retries.succeeded(&key(1), Instant::now());
        advance(2.0).await;
        assert_eq!((pop_all(&mut retries), retries.is_empty()), (0, true));
    }
}
