//! Keys to enqueue later, each once and at the earliest of its times.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use reknit_apis::Key;
use tokio::time::Instant;

use super::lanes::shrink;

#[derive(Debug, Default)]
pub(super) struct Delayed {
    by_time: BTreeMap<(Instant, u64), Arc<Key>>,
    by_key: HashMap<Arc<Key>, (Instant, u64)>,
    tickets: u64,
}

impl Delayed {
    /// Adds the key, unless it has an earlier time. Returns true if it is now the first to become due.
    pub(super) fn add(&mut self, key: Arc<Key>, due: Instant) -> bool {
        match self.by_key.get(&key) {
            Some((earlier, _)) if *earlier <= due => return false,
            Some(later) => drop(self.by_time.remove(later)),
            None => {}
        }
        self.tickets += 1;
        let slot = (due, self.tickets);
        self.by_key.insert(key.clone(), slot);
        self.by_time.insert(slot, key);
        self.by_time.first_key_value().is_some_and(|(first, _)| *first == slot)
    }

    /// Removes and returns a key that is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Arc<Key>> {
        let key = self.by_time.first_entry().filter(|first| first.key().0 <= now)?.remove();
        self.by_key.remove(&key);
        shrink(&mut self.by_key);
        Some(key)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|((due, _), _)| *due)
    }
}
