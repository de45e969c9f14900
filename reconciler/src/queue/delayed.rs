//! Keys to enqueue later. Each key is held once, with the earliest of its due times, and with what is true of one of its
//! delays.

use std::{
    collections::{BTreeMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use reknit_apis::{Key, internal::HashMap};
use tokio::time::Instant;

use crate::capacity::shrink;

/// The origin of a delayed key.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Delay {
    /// True if it continues a pass that was prompted.
    pub(crate) prompted: bool,
    /// True if it was added outside of a pass.
    pub(crate) is_external: bool,
    /// True if the wait up to the due time was meant to be long.
    pub(crate) is_long: bool,
}

impl Delay {
    /// The origin within this process.
    pub(crate) fn prompted(prompted: bool) -> Self {
        Self { prompted, ..Self::default() }
    }
}

/// The delayed keys, by due time and by key. A ticket orders keys with the same due time.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    by_time: BTreeMap<(Instant, u64), Arc<Key>>,
    by_key: HashMap<Arc<Key>, ((Instant, u64), Delay)>,
    last_ticket: u64,
}

impl Delayed {
    /// Adds the key, unless it is held with an earlier due time. Returns true if it is now the first key to become due.
    pub(crate) fn add(&mut self, key: Arc<Key>, due: Instant, delay: Delay) -> bool {
        self.last_ticket += 1;
        let position = (due, self.last_ticket);
        match self.by_key.entry(key.clone()) {
            Entry::Occupied(mut held) => {
                let (earlier, known) = held.get_mut();
                known.prompted |= delay.prompted;
                known.is_external |= delay.is_external;
                if earlier.0 <= due {
                    return false;
                }
                known.is_long = delay.is_long;
                self.by_time.remove(&std::mem::replace(earlier, position));
            }
            Entry::Vacant(new) => drop(new.insert((position, delay))),
        }
        self.by_time.insert(position, key);
        self.by_time.first_key_value().is_some_and(|(first, _)| *first == position)
    }

    /// Makes all keys due earlier by this time.
    pub(super) fn bring_forward(&mut self, by: Duration) {
        let earlier = |due: Instant| due.checked_sub(by).unwrap_or_else(Instant::now);
        let by_time = std::mem::take(&mut self.by_time).into_iter();
        self.by_time = by_time.map(|((due, ticket), key)| ((earlier(due), ticket), key)).collect();
        self.by_key.values_mut().for_each(|((due, _), _)| *due = earlier(*due));
    }

    /// Removes and returns a key that is due, if any.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Arc<Key>, Delay)> {
        let key = self.by_time.first_entry().filter(|first| first.key().0 <= now)?.remove();
        let delay = self.by_key.remove(&key).map(|(_, delay)| delay);
        shrink(&mut self.by_key);
        Some((key, delay.unwrap_or_default()))
    }

    /// Removes the key, if it is delayed. Returns true if it is prompted.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        let Some((position, delay)) = self.by_key.remove(key) else { return false };
        self.by_time.remove(&position);
        shrink(&mut self.by_key);
        delay.prompted
    }

    /// Removes and returns the key with the earliest due time.
    pub(crate) fn pop_first(&mut self) -> Option<Arc<Key>> {
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }

    /// Removes and returns the keys for which `condition` returns true, by due time, each with whether it is prompted.
    pub(crate) fn take_where(&mut self, condition: impl Fn(&Key) -> bool) -> Vec<(Arc<Key>, bool)> {
        let by_key = &mut self.by_key;
        let taken = self.by_time.extract_if(.., |_, key| condition(key));
        let taken = taken.map(|(_, key)| {
            let prompted = by_key.remove(&key).is_some_and(|(_, delay)| delay.prompted);
            (key, prompted)
        });
        let taken = taken.collect();
        shrink(&mut self.by_key);
        taken
    }

    /// The keys with their due times, the earliest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<Key>, Instant)> {
        self.by_time.iter().map(|((due, _), key)| (key, *due))
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|((due, _), _)| *due)
    }
}
