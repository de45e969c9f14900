//! The keys that became due while this process did not lead them, and that a promotion would not enqueue.

use std::{sync::Arc, time::Duration};

use reknit_apis::Key;
use reknit_injection::internal::LogLimit;
use tokio::time::Instant;

use crate::queue::{Delay, Delayed};

/// The maximum number of keys. Keys of deleted objects are smaller than the cached objects were.
const MAX_KEYS: usize = 100_000;

/// The postponed keys of one controller, each with the time at which it expires: by then, a process that led the key when
/// it became due has processed it, or another process leads it and has processed its own postponed keys.
///
/// Most keys are enqueued by the promotion of the next leader. Every replica keeps those that it would miss, and that become due
/// during a handover or between the death of a leader and the next term.
#[derive(Default)]
pub(super) struct Postponed {
    keys: Delayed,
    log_limit: LogLimit,
}

impl Postponed {
    /// Keeps the key for this time. If too many keys are kept, drops the one that expires first.
    pub(super) fn keep(&mut self, key: Key, time: Duration, prompted: bool) {
        let key = Arc::new(key);
        let prompted = self.keys.remove(&key) || prompted;
        if self.keys.len() >= MAX_KEYS {
            self.keys.pop_first();
            if self.log_limit.allows(&()) {
                tracing::warn!(
                    limit = MAX_KEYS,
                    "too many keys are postponed until their leader is known: the oldest are dropped; this warning is \
                     repeated once a minute"
                );
            }
        }
        if let Some(expiry) = Instant::now().checked_add(time) {
            self.keys.add(key, expiry, Delay::prompted(prompted));
        }
    }

    /// Drops the expired keys that another process leads. Keeps the others for this time again.
    pub(super) fn drop_expired(&mut self, time: Duration, is_led_by_other: impl Fn(&Key) -> bool) {
        let now = Instant::now();
        let expired = std::iter::from_fn(|| self.keys.pop_due(now)).collect::<Vec<_>>();
        for (key, delay) in expired.into_iter().filter(|(key, _)| !is_led_by_other(key)) {
            self.keep(Arc::unwrap_or_clone(key), time, delay.prompted);
        }
    }

    /// Removes and returns the keys for which `condition` returns true, each with whether a pass of it was prompted.
    pub(super) fn take_where(&mut self, condition: impl Fn(&Key) -> bool) -> Vec<(Arc<Key>, bool)> {
        self.keys.take_where(condition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_expired_key_is_dropped_only_if_another_process_leads_it() {
        let (mut postponed, time) = (Postponed::default(), Duration::from_secs(10));
        ["led by another", "led by none"]
            .iter()
            .for_each(|name| postponed.keep(Key::new(None, name), time, false));
        tokio::time::advance(time).await;
        postponed.drop_expired(time, |key| key.name == "led by another");
        let kept = postponed.take_where(|_| true);
        assert_eq!(kept.iter().map(|(key, _)| &*key.name).collect::<Vec<_>>(), ["led by none"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_keys_is_limited() {
        let (mut postponed, time) = (Postponed::default(), Duration::from_secs(10));
        (0..=MAX_KEYS).for_each(|n| postponed.keep(Key::new(None, &n.to_string()), time, false));
        assert_eq!(postponed.take_where(|key| key.name == "0"), []);
        assert_eq!(postponed.take_where(|_| true).len(), MAX_KEYS);
    }
}
