//! Waiters for changes of one object, by key.

use std::sync::Arc;

use parking_lot::Mutex;
use reknit_apis::{Key, internal::HashMap};
use tokio::sync::Notify;

/// The waiters by key. A change wakes only the waiters of its key.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<Key, KeyWaiters>>);

/// The waiters of one key.
#[derive(Default)]
struct KeyWaiters {
    count: usize,
    changed: Arc<Notify>,
}

/// A registered waiter. Dropping it unregisters it.
pub(crate) struct Waiter<'a> {
    waiters: &'a Waiters,
    key: &'a Key,
    pub(crate) changed: Arc<Notify>,
}

impl Waiters {
    pub(crate) fn register<'a>(&'a self, key: &'a Key) -> Waiter<'a> {
        let mut by_key = self.0.lock();
        let key_waiters = by_key.entry(key.clone()).or_default();
        key_waiters.count += 1;
        Waiter { waiters: self, key, changed: key_waiters.changed.clone() }
    }

    pub(crate) fn wake(&self, key: impl FnOnce() -> Key) {
        let by_key = self.0.lock();
        if !by_key.is_empty()
            && let Some(key_waiters) = by_key.get(&key())
        {
            key_waiters.changed.notify_waiters();
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut by_key = self.waiters.0.lock();
        let Some(key_waiters) = by_key.get_mut(self.key) else { return };
        key_waiters.count -= 1;
        if key_waiters.count == 0 {
            by_key.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_removed_with_its_last_waiter() {
        let (waiters, key) = (Waiters::default(), Key::new("a", "b"));
        let (first, second) = (waiters.register(&key), waiters.register(&key));
        drop(first);
        assert_eq!(waiters.0.lock().len(), 1);
        drop(second);
        assert!(waiters.0.lock().is_empty());
    }
}
