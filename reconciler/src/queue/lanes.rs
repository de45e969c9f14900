//! Two lanes of keys: who waits where, who is claimed, and whose turn it is.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use reknit_apis::Key;
use tokio::time::Instant;

/// So many fast keys in a row, and a slow one that waits gets its turn: one in ten.
const FAST_IN_A_ROW: u32 = 9;

/// Room for eight times as many keys is never too much.
const FEW: usize = 1 << 10;

/// Which of the two ways a key waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// What was asked of every key at once: a resync, a promotion.
    Slow,
    /// What happened to this key.
    Fast,
}

/// Each key that waits or is claimed, once.
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
    Waiting { lane: Lane, ticket: u64, since: Instant },
    Claimed { again: Option<(Lane, Instant)> },
}

/// What adding a key came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It waits now.
    Waits,
    /// It is claimed, and will wait once it is done.
    Later,
    /// It was added already.
    Known,
}

impl Lanes {
    /// Adds a key, which moves up where it waits in the slow lane and comes to the fast one.
    pub(super) fn add(&mut self, key: Arc<Key>, lane: Lane, now: Instant) -> Added {
        match self.places.get_mut(&key) {
            None => {
                self.wait(key, lane, now);
                Added::Waits
            }
            Some(Place::Claimed { again: again @ None }) => {
                *again = Some((lane, now));
                Added::Later
            }
            Some(Place::Claimed { again: Some((before, _)) }) => {
                *before = lane.max(*before);
                Added::Known
            }
            Some(Place::Waiting { lane: before, ticket, since }) => {
                if lane > *before {
                    let (ticket, since) = (*ticket, *since);
                    self.slow.remove(&ticket);
                    self.wait(key, lane, since);
                }
                Added::Known
            }
        }
    }

    /// The key whose turn it is, and since when it waited. It is claimed until [`done`](Self::done).
    pub(super) fn claim(&mut self) -> Option<(Arc<Key>, Instant)> {
        let (_, key) = self.pop()?;
        let place = self.places.insert(key.clone(), Place::Claimed { again: None });
        let since = match place {
            Some(Place::Waiting { since, .. }) => since,
            _ => Instant::now(),
        };
        Some((key, since))
    }

    /// The key is no longer claimed. True where it waits again, since it was added meanwhile.
    pub(super) fn done(&mut self, key: &Arc<Key>) -> bool {
        let Some(Place::Claimed { again }) = self.places.remove(key) else { return false };
        if let Some((lane, since)) = again {
            self.wait(key.clone(), lane, since);
        }
        give_back(&mut self.places);
        again.is_some()
    }

    /// How many keys wait.
    pub(super) fn len(&self) -> usize {
        self.fast.len() + self.slow.len()
    }

    /// Takes what waits, without claiming it.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Key>> {
        let waiting = |lane: &mut BTreeMap<_, _>| std::mem::take(lane).into_values();
        let keys: Vec<_> = waiting(&mut self.fast).chain(waiting(&mut self.slow)).collect();
        for key in &keys {
            self.places.remove(key);
        }
        give_back(&mut self.places);
        keys
    }

    fn wait(&mut self, key: Arc<Key>, lane: Lane, since: Instant) {
        self.tickets += 1;
        let ticket = self.tickets;
        self.lane(lane).insert(ticket, key.clone());
        self.places.insert(key, Place::Waiting { lane, ticket, since });
    }

    fn pop(&mut self) -> Option<(u64, Arc<Key>)> {
        let slow_waits = !self.slow.is_empty();
        if self.fast.is_empty() || (slow_waits && self.fast_in_a_row >= FAST_IN_A_ROW) {
            self.fast_in_a_row = 0;
            return self.slow.pop_first();
        }
        self.fast_in_a_row = if slow_waits { self.fast_in_a_row + 1 } else { 0 };
        self.fast.pop_first()
    }

    fn lane(&mut self, lane: Lane) -> &mut BTreeMap<u64, Arc<Key>> {
        match lane {
            Lane::Fast => &mut self.fast,
            Lane::Slow => &mut self.slow,
        }
    }
}

/// A start, or a resync, adds every key at once. The room for them is not kept for the few that come later: it goes once an
/// eighth would do.
pub(super) fn give_back<T>(all: &mut HashMap<Arc<Key>, T>) {
    let few = all.len().max(FEW);
    if all.capacity() / 8 > few {
        all.shrink_to(2 * few);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_that_many_keys_took_is_given_back_and_none_of_them_is_lost() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let key = |n: usize| Arc::new(Key::new("default", &n.to_string()));
        for n in 0..100_000 {
            assert_eq!(lanes.add(key(n), Lane::Fast, now), Added::Waits);
        }
        for n in 0..100_000 {
            let (claimed, _) = lanes.claim().unwrap();
            assert_eq!(claimed, key(n));
            assert!(!lanes.done(&claimed));
        }
        assert!(lanes.places.is_empty() && lanes.places.capacity() <= 8 * FEW, "{}", lanes.places.capacity());
    }
}
