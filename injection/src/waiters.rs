//! Who waits for a change of one key.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use reknit_apis::Key;
use tokio::sync::Notify;

/// Woken by key, so that a thousand who wait for a thousand objects do not all look at each change.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<Key, Arc<Notify>>>);

/// A place among those who wait for a key, left by dropping it.
pub(crate) struct Waiting<'a> {
    all: &'a Waiters,
    key: &'a Key,
    pub(crate) changed: Arc<Notify>,
}

impl Waiters {
    pub(crate) fn join<'a>(&'a self, key: &'a Key) -> Waiting<'a> {
        let changed = self.0.lock().entry(key.clone()).or_default().clone();
        Waiting { all: self, key, changed }
    }

    pub(crate) fn wake(&self, key: impl FnOnce() -> Key) {
        let waiting = self.0.lock();
        if !waiting.is_empty()
            && let Some(changed) = waiting.get(&key())
        {
            changed.notify_waiters();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.all.0.lock();
        // The map's own, and this one.
        if Arc::strong_count(&self.changed) == 2 {
            waiting.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_who_leaves_closes_the_door() {
        let (waiters, key) = (Waiters::default(), Key::new("a", "b"));
        let (one, two) = (waiters.join(&key), waiters.join(&key));
        drop(one);
        assert_eq!(waiters.0.lock().len(), 1);
        drop(two);
        assert!(waiters.0.lock().is_empty());
    }
}
