//! A set of keys whose number is a metric.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use prometheus::IntGauge;
use reknit_apis::Key;

/// A set of keys, such as those that fail, whose number is a gauge. A key leaves it with its object, or once this process
/// does not lead it.
pub(crate) struct CountedKeys {
    keys: Mutex<BTreeSet<Key>>,
    count: IntGauge,
}

impl CountedKeys {
    pub(crate) fn new(count: IntGauge) -> Self {
        Self { keys: Mutex::default(), count }
    }

    /// Adds the key. Returns true if it is new.
    pub(crate) fn add(&self, key: &Key) -> bool {
        self.change(|keys| keys.insert(key.clone()))
    }

    /// Removes the key. Returns true if it was in the set.
    pub(crate) fn remove(&self, key: &Key) -> bool {
        self.change(|keys| keys.remove(key))
    }

    /// The first keys in their order, at most this number.
    pub(crate) fn first(&self, limit: usize) -> Vec<Key> {
        self.keys.lock().iter().take(limit).cloned().collect()
    }

    /// Removes the keys for which `condition` returns true.
    pub(crate) fn remove_where(&self, condition: impl Fn(&Key) -> bool) {
        self.change(|keys| {
            keys.retain(|key| !condition(key));
            true
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<Key>) -> bool) -> bool {
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

    #[test]
    fn a_key_counts_once_until_it_is_removed() {
        let count = IntGauge::new("failing", "Failing keys").unwrap();
        let failing = CountedKeys::new(count.clone());
        let [a, b] = ["a", "b"].map(|name| Key::new("shop", name));
        assert!(failing.add(&a) && !failing.add(&a) && failing.add(&b));
        assert_eq!(count.get(), 2);
        assert!(failing.remove(&a) && !failing.remove(&a));
        assert_eq!(count.get(), 1);
        failing.remove_where(|key| *key == b);
        assert_eq!(count.get(), 0);
    }
}
