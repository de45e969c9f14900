//! A set of keys whose number is a metric.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use prometheus::IntGauge;
use reknit_apis::Key;
use tokio::time::Instant;

/// A set of keys, such as those that fail, whose number is a gauge. A key leaves it with its object, or once this process
/// does not lead it.
pub(crate) struct CountedKeys {
    /// The time at which each key was added.
    keys: Mutex<BTreeMap<Key, Instant>>,
    count: IntGauge,
}

impl CountedKeys {
    pub(crate) fn new(count: IntGauge) -> Self {
        Self { keys: Mutex::default(), count }
    }

    /// Adds the key. Returns true if it is new.
    pub(crate) fn add(&self, key: &Key) -> bool {
        self.change(|keys| {
            let is_new = !keys.contains_key(key);
            if is_new {
                keys.insert(key.clone(), Instant::now());
            }
            is_new
        })
    }

    /// Removes the key. Returns true if it was in the set.
    pub(crate) fn remove(&self, key: &Key) -> bool {
        self.change(|keys| keys.remove(key).is_some())
    }

    /// The first keys in their order, at most this number.
    pub(crate) fn first(&self, limit: usize) -> Vec<Key> {
        self.keys.lock().keys().take(limit).cloned().collect()
    }

    /// The time for which the key that was added first has been in the set. Zero if the set is empty.
    pub(super) fn longest(&self) -> Duration {
        self.keys.lock().values().min().map(Instant::elapsed).unwrap_or_default()
    }

    /// Removes the keys for which `condition` returns true.
    pub(crate) fn remove_where(&self, condition: impl Fn(&Key) -> bool) {
        self.change(|keys| {
            keys.retain(|key, _| !condition(key));
            true
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Key, Instant>) -> bool) -> bool {
        let mut keys = self.keys.lock();
        let is_changed = change(&mut keys);
        if is_changed {
            self.count.set(i64::try_from(keys.len()).unwrap_or(i64::MAX));
        }
        is_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_counts_once_until_it_is_removed() {
        let count = IntGauge::new("failing", "Failing keys").unwrap();
        let failing = CountedKeys::new(count.clone());
        let [a, b] = ["a", "b"].map(|name| Key::new("shop", name));
        assert!(failing.longest().is_zero());
        assert!(failing.add(&a));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(!failing.add(&a) && failing.add(&b));
        assert_eq!((count.get(), failing.longest().as_secs()), (2, 3));
        assert!(failing.remove(&a) && !failing.remove(&a));
        assert_eq!((count.get(), failing.longest().as_secs()), (1, 0));
        failing.remove_where(|key| *key == b);
        assert_eq!(count.get(), 0);
    }
}
