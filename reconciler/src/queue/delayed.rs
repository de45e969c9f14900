//! Keys that are to be added later, each once, at the earliest of the times that were asked for.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use reknit_apis::Key;
use tokio::time::Instant;

use super::lanes::give_back;

#[derive(Debug, Default)]
pub(super) struct Delayed {
    by_time: BTreeMap<(Instant, u64), Arc<Key>>,
    by_key: HashMap<Arc<Key>, (Instant, u64)>,
    tickets: u64,
}

impl Delayed {
    /// Notes the key for that time, unless an earlier one is noted. True where nothing is due sooner.
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

    /// A key whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Arc<Key>> {
        let first = self.by_time.first_entry().filter(|first| first.key().0 <= now)?;
        let key = first.remove();
        self.by_key.remove(&key);
        give_back(&mut self.by_key);
        Some(key)
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|((due, _), _)| *due)
    }
}
