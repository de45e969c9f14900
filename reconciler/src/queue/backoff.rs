//! The exponential backoff of each failed key.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc, time::Duration};

use reknit_apis::Key;

use super::{cause::Cause, storms::LONG_WAIT};

pub(super) const FIRST_WAIT: Duration = Duration::from_millis(5);
pub(super) const MAX_WAIT: Duration = Duration::from_secs(1000);

/// The failed keys, with the waits of client-go's default controller rate limiter.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// The number of failures of each key since its last success that count, the last one as the cause of the retry, and
    /// whether one of the failed passes was prompted. A BTreeMap, since its memory shrinks with its number of keys.
    failures: BTreeMap<Arc<Key>, (u32, Cause, bool)>,
}

impl Backoff {
    /// Counts a failure with this error, and returns the wait until the retry, which `limits` limits. `prompted`: the failed
    /// pass was prompted. `is_early`: the key still waits for its retry, so the failure does not count. A key with many
    /// events would soon wait for the longest time, although it has hardly been retried.
    pub(super) fn failed(
        &mut self,
        key: &Arc<Key>,
        limits: RangeInclusive<Duration>,
        error: &str,
        prompted: bool,
        is_early: bool,
    ) -> Duration {
        let (failures, cause, was_prompted) = self.failures.entry(key.clone()).or_insert((
            0,
            Cause::After { is_external: false, is_long: false },
            false,
        ));
        *was_prompted |= prompted;
        *failures = failures.saturating_add(u32::from(!is_early)).max(1);
        let wait = FIRST_WAIT.saturating_mul(1_u32.checked_shl(*failures - 1).unwrap_or(u32::MAX));
        let (least, most) = limits.into_inner();
        let wait = wait.min(MAX_WAIT).clamp(least, most);
        *cause = Cause::retry(*failures, error, wait >= LONG_WAIT);
        wait
    }

    /// The cause of the key's retry, and whether the retry continues a prompted pass.
    pub(super) fn cause(&self, key: &Key) -> (Cause, bool) {
        let failed = self.failures.get(key);
        failed.map_or((Cause::After { is_external: false, is_long: false }, false), |(_, cause, prompted)| {
            (cause.clone(), *prompted)
        })
    }

    /// The number of failures of the key since its last success.
    pub(super) fn failures(&self, key: &Key) -> u32 {
        self.failures.get(key).map_or(0, |(failures, ..)| *failures)
    }

    /// Resets the key's failures. Returns true if there were any.
    pub(super) fn forget(&mut self, key: &Key) -> bool {
        self.failures.remove(key).is_some()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.failures.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::retries::ANY_WAIT, *};

    #[test]
    fn a_key_waits_5_ms_and_twice_as_long_after_each_failure_up_to_1000_s() {
        let (mut backoff, key) = (Backoff::default(), Arc::new(Key::new("default", "a")));
        let waits: Vec<_> =
            (0..5).map(|_| backoff.failed(&key, ANY_WAIT, "no", false, false).as_millis()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80]);
        assert_eq!(
            (0..40).map(|_| backoff.failed(&key, ANY_WAIT, "no", false, false)).last(),
            Some(MAX_WAIT)
        );
    }

    #[test]
    fn a_forgotten_key_starts_at_the_first_wait_and_uses_no_memory() {
        let (mut backoff, key) = (Backoff::default(), Arc::new(Key::new("default", "a")));
        backoff.failed(&key, ANY_WAIT, "no", false, false);
        assert!(backoff.forget(&key) && backoff.is_empty() && !backoff.forget(&key));
        assert_eq!(backoff.failed(&key, ANY_WAIT, "no", false, false), FIRST_WAIT);
    }
}
