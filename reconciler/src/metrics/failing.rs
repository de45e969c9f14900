//! The keys that fail at present.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use prometheus::IntGauge;
use reknit_apis::Key;

/// The keys whose last pass failed, whether or not it is retried. A deleted object has a last pass that succeeds, so the
/// keys are those of objects that exist.
pub(crate) struct FailingKeys {
    keys: Mutex<BTreeSet<Key>>,
    count: IntGauge,
}

impl FailingKeys {
    pub(crate) fn new(count: IntGauge) -> Self {
        Self { keys: Mutex::default(), count }
    }

    pub(crate) fn add(&self, key: &Key) {
        self.change(|keys| keys.insert(key.clone()));
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.change(|keys| keys.remove(key));
    }

    /// Removes the keys for which `condition` returns true.
    pub(crate) fn remove_where(&self, condition: impl Fn(&Key) -> bool) {
        self.change(|keys| {
            keys.retain(|key| !condition(key));
            true
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<Key>) -> bool) {
        let mut keys = self.keys.lock();
        if change(&mut keys) {
            self.count.set(i64::try_from(keys.len()).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_once_until_it_succeeds_or_is_no_longer_led() {
        let count = IntGauge::new("failing", "Failing keys").unwrap();
        let failing = FailingKeys::new(count.clone());
        let [a, b] = ["a", "b"].map(|name| Key::new("shop", name));
        failing.add(&a);
        failing.add(&a);
        failing.add(&b);
        assert_eq!(count.get(), 2);
        failing.remove(&a);
        failing.remove(&a);
        assert_eq!(count.get(), 1);
        failing.remove_where(|key| *key == b);
        assert_eq!(count.get(), 0);
    }
}
