//! Waiters for changes of one key.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use reknit_apis::Key;
use tokio::sync::Notify;

/// The waiters by key. A change wakes those of its key, so a thousand waiters for a thousand objects do not all read each
/// change.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<Key, Awaited>>);

#[derive(Default)]
struct Awaited {
    by: usize,
    changed: Arc<Notify>,
}

/// A registered waiter. Dropping it unregisters it.
pub(crate) struct Waiting<'a> {
    all: &'a Waiters,
    key: &'a Key,
    pub(crate) changed: Arc<Notify>,
}

impl Waiters {
    pub(crate) fn join<'a>(&'a self, key: &'a Key) -> Waiting<'a> {
        let mut all = self.0.lock();
        let awaited = all.entry(key.clone()).or_default();
        awaited.by += 1;
        Waiting { all: self, key, changed: awaited.changed.clone() }
    }

    pub(crate) fn wake(&self, key: impl FnOnce() -> Key) {
        let waiting = self.0.lock();
        if !waiting.is_empty()
            && let Some(awaited) = waiting.get(&key())
        {
            awaited.changed.notify_waiters();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        let Some(awaited) = all.get_mut(self.key) else { return };
        awaited.by -= 1;
        if awaited.by == 0 {
            all.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_forgotten_with_its_last_waiter() {
        let (waiters, key) = (Waiters::default(), Key::new("a", "b"));
        let (one, two) = (waiters.join(&key), waiters.join(&key));
        drop(one);
        assert_eq!(waiters.0.lock().len(), 1);
        drop(two);
        assert!(waiters.0.lock().is_empty());
    }
}
