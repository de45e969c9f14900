//! The two lanes of the queue: which keys are queued or claimed, and which is next.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use reknit_apis::Key;
use tokio::time::Instant;

/// The number of fast keys in a row after which a waiting slow key gets its turn.
const FAST_IN_A_ROW: u32 = 9;

/// The number of keys below which a map's capacity is not reduced.
const SMALL: usize = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// For reasons that concern all keys at once: a resync, a promotion.
    Slow,
    /// For changes that concern the key.
    Fast,
}

/// The queued and the claimed keys, each once.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    places: HashMap<Arc<Key>, Place>,
    fast: BTreeMap<u64, Arc<Key>>,
    slow: BTreeMap<u64, Arc<Key>>,
    tickets: u64,
    fast_in_a_row: u32,
}

#[derive(Debug)]
enum Place {
    Queued { lane: Lane, ticket: u64, since: Instant },
    Claimed { again: Option<(Lane, Instant)> },
}

/// The result of adding a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    Queued,
    /// It is claimed, and will be queued when the claim ends.
    Later,
    /// It was added before.
    Known,
}

impl Lanes {
    /// Adds a key. A key in the slow lane moves to the fast lane if it is added there.
    pub(super) fn add(&mut self, key: Arc<Key>, lane: Lane, now: Instant) -> Added {
        match self.places.get_mut(&key) {
            None => {
                self.enqueue(key, lane, now);
                return Added::Queued;
            }
            Some(Place::Claimed { again: again @ None }) => {
                *again = Some((lane, now));
                return Added::Later;
            }
            Some(Place::Claimed { again: Some((before, _)) }) => *before = lane.max(*before),
            Some(Place::Queued { lane: before, ticket, since }) if lane > *before => {
                let (ticket, since) = (*ticket, *since);
                self.slow.remove(&ticket);
                self.enqueue(key, lane, since);
            }
            Some(Place::Queued { .. }) => {}
        }
        Added::Known
    }

    /// Claims the next key until [`done`](Self::done). Also returns the time since which it was queued.
    pub(super) fn claim(&mut self) -> Option<(Arc<Key>, Instant)> {
        let key = self.pop()?;
        let place = self.places.insert(key.clone(), Place::Claimed { again: None });
        let since = match place {
            Some(Place::Queued { since, .. }) => since,
            _ => Instant::now(),
        };
        Some((key, since))
    }

    /// Ends the claim. Returns true if the key was added meanwhile, and so is queued again.
    pub(super) fn done(&mut self, key: &Arc<Key>) -> bool {
        let Some(Place::Claimed { again }) = self.places.remove(key) else { return false };
        if let Some((lane, since)) = again {
            self.enqueue(key.clone(), lane, since);
        }
        shrink(&mut self.places);
        again.is_some()
    }

    /// The number of queued keys.
    pub(super) fn len(&self) -> usize {
        self.fast.len() + self.slow.len()
    }

    /// Removes and returns the queued keys.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Key>> {
        let lanes = [&mut self.fast, &mut self.slow];
        let keys: Vec<_> = lanes.into_iter().flat_map(std::mem::take).map(|(_, key)| key).collect();
        for key in &keys {
            self.places.remove(key);
        }
        shrink(&mut self.places);
        keys
    }

    fn enqueue(&mut self, key: Arc<Key>, lane: Lane, since: Instant) {
        self.tickets += 1;
        let ticket = self.tickets;
        let keys = match lane {
            Lane::Fast => &mut self.fast,
            Lane::Slow => &mut self.slow,
        };
        keys.insert(ticket, key.clone());
        self.places.insert(key, Place::Queued { lane, ticket, since });
    }

    fn pop(&mut self) -> Option<Arc<Key>> {
        let slow_waits = !self.slow.is_empty();
        if self.fast.is_empty() || (slow_waits && self.fast_in_a_row >= FAST_IN_A_ROW) {
            self.fast_in_a_row = 0;
            return self.slow.pop_first().map(|(_, key)| key);
        }
        self.fast_in_a_row = if slow_waits { self.fast_in_a_row + 1 } else { 0 };
        self.fast.pop_first().map(|(_, key)| key)
    }
}

/// Releases the capacity that a burst of keys, such as at the start or a resync, has left unused.
pub(super) fn shrink<T>(all: &mut HashMap<Arc<Key>, T>) {
    let needed = all.len().max(SMALL);
    if all.capacity() / 8 > needed {
        all.shrink_to(2 * needed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_for_many_keys_is_released_and_no_key_is_lost() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let key = |n: usize| Arc::new(Key::new("default", &n.to_string()));
        for n in 0..100_000 {
            assert_eq!(lanes.add(key(n), Lane::Fast, now), Added::Queued);
        }
        for n in 0..100_000 {
            let (claimed, _) = lanes.claim().unwrap();
            assert_eq!(claimed, key(n));
            assert!(!lanes.done(&claimed));
        }
        assert!(
            lanes.places.is_empty() && lanes.places.capacity() <= 8 * SMALL,
            "{}",
            lanes.places.capacity()
        );
    }
}
