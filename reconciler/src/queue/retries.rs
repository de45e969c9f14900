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
//!
//! The keys that wait for a token take turns by namespace, so a namespace in which everything fails delays the retry of
//! another one by no more than a token.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use reknit_apis::{Key, internal::HashMap};
use tokio::time::Instant;

use super::{
    backoff::Backoff,
    cause::Cause,
    delayed::{Delay, Delayed},
    token_bucket::TokenBucket,
};
use crate::{capacity::shrink, turns::Turns};

/// The number of tokens that the success of a key adds if it had failed before.
const TOKENS_FOR_SUCCESS: u32 = 2;
/// The rate and the burst of client-go's default controller rate limiter: ten retries a second.
const PERIOD: Duration = Duration::from_millis(100);
const BURST: u32 = 100;
/// The wait of a retry that nothing but the backoff limits.
pub(super) const ANY_WAIT: RangeInclusive<Duration> = Duration::ZERO..=Duration::MAX;

/// The failed keys and their limits.
#[derive(Debug)]
pub(super) struct Retries {
    backoff: Backoff,
    bucket: TokenBucket,
    /// The keys by the end of their backoff.
    waiting: Delayed,
    /// The keys whose backoff has ended, and that wait for a token.
    ready: Turns<Arc<Key>>,
    /// The tickets of the keys in `ready`.
    tickets: HashMap<Arc<Key>, u64>,
}

impl Retries {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            backoff: Backoff::default(),
            bucket: TokenBucket::new(PERIOD, BURST, now),
            waiting: Delayed::default(),
            ready: Turns::default(),
            tickets: HashMap::default(),
        }
    }

    /// Adds a failed key, to be retried with a token after its backoff, which is limited by `wait`. A key that already
    /// waits keeps its earlier time. `prompted`: the failed pass was prompted. Returns true if the next retry may be due
    /// earlier than before.
    pub(super) fn failed(
        &mut self,
        key: &Arc<Key>,
        wait: RangeInclusive<Duration>,
        error: &str,
        prompted: bool,
        now: Instant,
    ) -> bool {
        let has_ticket = self.tickets.contains_key(key);
        let is_early = has_ticket || self.waiting.contains(key);
        let wait = self.backoff.failed(key, wait, error, prompted, is_early);
        !has_ticket && self.waiting.add(key.clone(), now + wait, Delay::default())
    }

    /// Resets the key's backoff and drops its retry, after a success. Returns true if other retries may be due earlier
    /// than before.
    pub(super) fn succeeded(&mut self, key: &Key, now: Instant) -> bool {
        let had_failed = self.forget(key);
        if had_failed {
            self.bucket.add(TOKENS_FOR_SUCCESS, now);
        }
        had_failed && self.next_due().is_some()
    }

    /// Resets the key's backoff and drops its retry. Returns true if the key had failed. No other key waits for a retry.
    pub(super) fn forget(&mut self, key: &Key) -> bool {
        let had_failed = self.backoff.forget(key);
        if had_failed {
            self.waiting.remove(key);
            if let Some(ticket) = self.tickets.remove(key) {
                self.ready.remove(key.namespace.as_deref(), ticket);
            }
        }
        had_failed
    }

    /// Removes and returns a key whose retry is due, if any, with the cause of the retry, and whether it continues a
    /// prompted pass. Takes a token.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Arc<Key>, (Cause, bool))> {
        while let Some((key, _)) = self.waiting.pop_due(now) {
            let ticket = self.ready.push(key.namespace.as_deref(), key.clone());
            self.tickets.insert(key, ticket);
        }
        if self.ready.is_empty() || !self.bucket.take(now) {
            return None;
        }
        let key = self.ready.pop()?;
        self.tickets.remove(&key);
        shrink(&mut self.tickets);
        let cause = self.backoff.cause(&key);
        Some((key, cause))
    }

    /// The time at which the next retry is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let token = self.bucket.next_token();
        match self.ready.is_empty() {
            true => self.waiting.next_due().map(|due| due.max(token)),
            false => Some(token),
        }
    }

    /// The keys that wait for a retry with the ends of their backoff, the earliest first. `None` for a key that waits for
    /// a token.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&Arc<Key>, Option<Instant>)> {
        let ready = self.tickets.keys().map(|key| (key, None));
        ready.chain(self.waiting.iter().map(|(key, due)| (key, Some(due))))
    }

    /// The number of keys that wait for a retry.
    pub(super) fn len(&self) -> usize {
        self.tickets.len() + self.waiting.len()
    }

    /// The cause of the key's retry.
    pub(super) fn cause(&self, key: &Key) -> Cause {
        self.backoff.cause(key).0
    }

    /// The number of failures of the key since its last success.
    pub(super) fn failures(&self, key: &Key) -> u32 {
        self.backoff.failures(key)
    }

    /// Drops all retries.
    pub(super) fn clear(&mut self) {
        (self.waiting, self.ready, self.tickets) = (Delayed::default(), Turns::default(), HashMap::default());
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
            retries.failed(&key(n), wait.clone(), "no", false, Instant::now());
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
    async fn a_limit_shortens_the_backoff_and_its_retries_take_tokens_too() {
        let mut retries = Retries::new(Instant::now());
        let limit = Duration::from_secs(30);
        for _ in 0..20 {
            fail(&mut retries, 0..1, ANY_WAIT);
        }
        fail(&mut retries, 1..200, Duration::ZERO..=limit);
        advance(0.005).await;
        assert_eq!(pop_all(&mut retries), 100);
        fail(&mut retries, 0..1, Duration::ZERO..=limit);
        advance(30.0).await;
        assert_eq!(pop_all(&mut retries), 100, "99 of the burst, and the key with the long backoff");
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_in_which_everything_fails_delays_the_retries_of_another_one_by_one_token() {
        let mut retries = Retries::new(Instant::now());
        fail(&mut retries, 0..2000, ANY_WAIT);
        advance(5.0).await;
        pop_all(&mut retries);
        let honest = Arc::new(Key::new("honest", "a"));
        retries.failed(&honest, ANY_WAIT, "no", false, Instant::now());
        advance(0.2).await;
        let due: Vec<_> =
            std::iter::from_fn(|| retries.pop_due(Instant::now()).map(|(key, _)| key)).collect();
        assert_eq!(due.len(), 2);
        assert!(due.contains(&honest));
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
        retries.failed(&key(1), asked..=Duration::MAX, "no", false, Instant::now());
        retries.failed(&key(2), asked..=asked, "no", false, Instant::now());
        advance(9.9).await;
        assert_eq!(pop_all(&mut retries), 0);
        advance(0.1).await;
        assert_eq!(pop_all(&mut retries), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn passes_that_events_cause_do_not_lengthen_the_backoff() {
        let (mut retries, start) = (Retries::new(Instant::now()), Instant::now());
        // A pass in each millisecond fails, for a second.
        for _ in 0..1000 {
            pop_all(&mut retries);
            retries.failed(&key(1), ANY_WAIT, "no", false, Instant::now());
            advance(0.001).await;
        }
        let next = retries.next_due().unwrap() - start;
        assert!(next <= Duration::from_millis(1300), "{next:?}");
        assert_eq!(retries.failures(&key(1)), 8, "5 ms to 640 ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_succeeds_before_its_retry_is_not_retried() {
        let mut retries = Retries::new(Instant::now());
        retries.failed(&key(1), ANY_WAIT, "no", false, Instant::now());
        retries.succeeded(&key(1), Instant::now());
        advance(2.0).await;
        assert_eq!((pop_all(&mut retries), retries.is_empty()), (0, true));
    }
}
