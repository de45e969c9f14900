//! Keys to enqueue later. Each key is held once, with the earliest of its due times.

use std::{collections::BTreeMap, sync::Arc};

use reknit_apis::{Key, internal::HashMap};
use tokio::time::Instant;

use super::lanes::shrink;

/// The delayed keys, by due time and by key. A ticket orders keys with the same due time.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    by_time: BTreeMap<(Instant, u64), Arc<Key>>,
    by_key: HashMap<Arc<Key>, (Instant, u64)>,
    last_ticket: u64,
}

impl Delayed {
    /// Adds the key, unless it is held with an earlier due time. Returns true if it is now the first key to become due.
    pub(crate) fn add(&mut self, key: Arc<Key>, due: Instant) -> bool {
        match self.by_key.get(&key) {
            Some((earlier_due, _)) if *earlier_due <= due => return false,
            Some(later_position) => drop(self.by_time.remove(later_position)),
            None => {}
        }
        self.last_ticket += 1;
        let position = (due, self.last_ticket);
        self.by_key.insert(key.clone(), position);
        self.by_time.insert(position, key);
        self.by_time.first_key_value().is_some_and(|(first, _)| *first == position)
    }

    /// Removes and returns a key that is due, if any.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Arc<Key>> {
        let key = self.by_time.first_entry().filter(|first| first.key().0 <= now)?.remove();
        self.by_key.remove(&key);
        shrink(&mut self.by_key);
        Some(key)
    }

    /// Removes the key, if it is delayed.
    pub(crate) fn remove(&mut self, key: &Key) {
        if let Some(position) = self.by_key.remove(key) {
            self.by_time.remove(&position);
            shrink(&mut self.by_key);
        }
    }

    /// Removes and returns the key with the earliest due time.
    pub(crate) fn pop_first(&mut self) -> Option<Arc<Key>> {
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }

    /// Removes and returns the keys for which `condition` returns true, by due time.
    pub(crate) fn take_where(&mut self, condition: impl Fn(&Key) -> bool) -> Vec<Arc<Key>> {
        let taken: Vec<_> =
            self.by_time.extract_if(.., |_, key| condition(key)).map(|(_, key)| key).collect();
        for key in &taken {
            self.by_key.remove(key);
        }
        shrink(&mut self.by_key);
        taken
    }

    /// The keys with their due times, the earliest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<Key>, Instant)> {
        self.by_time.iter().map(|((due, _), key)| (key, *due))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|((due, _), _)| *due)
    }
}
