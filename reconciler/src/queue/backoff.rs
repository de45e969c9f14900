//! How long a key that failed waits: longer each time, and all keys together not too often.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use reknit_apis::Key;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1000);
const PER_SECOND: f64 = 10.0;
const BURST: f64 = 100.0;

/// The two limits that client-go puts on retries: a wait for each key, doubled at each failure, and a bucket of
/// tokens for all of them.
#[derive(Debug)]
pub(crate) struct Backoff {
    /// A tree: its room goes with its keys, however many failed at once.
    failures: BTreeMap<Arc<Key>, u32>,
    bucket: Bucket,
}

impl Backoff {
    pub(crate) fn new(now: Instant) -> Self {
        Self { failures: BTreeMap::new(), bucket: Bucket { tokens: BURST, at: now } }
    }

    /// How long this key has to wait after one more failure: what the stricter of the two limits says, but no longer than
    /// `at_most`.
    pub(crate) fn failed(&mut self, key: &Arc<Key>, at_most: Option<Duration>, now: Instant) -> Duration {
        let at_most = at_most.unwrap_or(Duration::MAX);
        let failures = self.failures.entry(key.clone()).or_default();
        let own = FIRST.saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX)).min(LONGEST);
        *failures = failures.saturating_add(1);
        own.min(at_most).max(self.bucket.take(at_most, now))
    }

    /// The key is well again, or not to be retried.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.failures.remove(key);
    }

    /// How often the key failed in a row.
    #[cfg(test)]
    pub(crate) fn failures(&self, key: &Key) -> u32 {
        self.failures.get(key).copied().unwrap_or_default()
    }
}

/// Tokens that come back at a steady rate; taking more than there are means waiting for them.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// Who does not wait for a token takes none, or others would wait for it without end.
    fn take(&mut self, at_most: Duration, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.tokens = (self.tokens + passed * PER_SECOND).min(BURST);
        let wait = Duration::try_from_secs_f64((1.0 - self.tokens) / PER_SECOND).unwrap_or_default();
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
    async fn a_key_waits_5_ms_and_twice_as_long_each_time_up_to_1000_s() {
        let mut backoff = Backoff::new(Instant::now());
        let mut fail = || {
            let at = Instant::now() + Duration::from_secs(3600);
            backoff.failed(&key("a"), None, at)
        };
        let waits: Vec<_> = (0..5).map(|_| fail().as_millis()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80]);
        assert_eq!((0..40).map(|_| fail()).last(), Some(LONGEST));
    }

    #[tokio::test(start_paused = true)]
    async fn a_forgotten_key_starts_again_and_leaves_nothing_behind() {
        let mut backoff = Backoff::new(Instant::now());
        backoff.failed(&key("a"), None, Instant::now());
        backoff.forget(&key("a"));
        assert!(backoff.failures.is_empty());
        assert_eq!(backoff.failed(&key("a"), None, Instant::now()), FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_are_retried_sooner_than_their_turn_others_wait_no_longer_than_they() {
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
    async fn all_keys_together_get_a_hundred_at_once_and_ten_a_second() {
        let mut backoff = Backoff::new(Instant::now());
        let waits: Vec<_> =
            (0..120).map(|n| backoff.failed(&key(&n.to_string()), None, Instant::now())).collect();
        assert!(waits[..100].iter().all(|wait| *wait == FIRST));
        assert_eq!(waits[109].as_millis(), 1000);
        assert_eq!(waits[119].as_millis(), 2000);
        tokio::time::advance(Duration::from_secs(12)).await;
        assert_eq!(backoff.failed(&key("late"), None, Instant::now()), FIRST);
    }
}
