//! The two lanes of the queue, and the keys that workers have claimed from them.

use std::{collections::BTreeMap, sync::Arc};

use reknit_apis::{Key, internal::HashMap};
use tokio::time::Instant;

/// The number of fast keys in a row after which a waiting slow key gets its turn.
const MAX_FAST_IN_A_ROW: u32 = 9;

/// The capacity of a map is not reduced below twice this number of keys.
const MIN_KEYS: usize = 1 << 10;

/// A lane of the queue. A key that is added to both is queued in the fast lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// The lane of keys that a resync or a promotion enqueues, many at once.
    Slow,
    /// The lane of keys that an event enqueues, such as a change of the object.
    Fast,
}

/// The queued and the claimed keys. Each key is held once.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    states: HashMap<Arc<Key>, KeyState>,
    /// The keys of the fast lane by ticket: the lowest is next.
    fast: BTreeMap<u64, Arc<Key>>,
    /// The keys of the slow lane by ticket.
    slow: BTreeMap<u64, Arc<Key>>,
    last_ticket: u64,
    fast_in_a_row: u32,
}

#[derive(Debug)]
enum KeyState {
    Queued {
        lane: Lane,
        ticket: u64,
        queued_at: Instant,
    },
    /// `added`: the lane and time of an add during the claim.
    Claimed {
        added: Option<(Lane, Instant)>,
    },
}

/// The result of adding a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddResult {
    Queued,
    /// The key is claimed, and will be queued when the claim ends.
    Deferred,
    /// The key is queued already, or was already added during its claim. Its lane may have changed.
    Duplicate,
}

impl Lanes {
    /// Adds a key. A key of the slow lane that is added to the fast lane moves to the fast lane.
    pub(super) fn add(&mut self, key: Arc<Key>, lane: Lane, now: Instant) -> AddResult {
        match self.states.get_mut(&key) {
            None => {
                self.enqueue(key, lane, now);
                return AddResult::Queued;
            }
            Some(KeyState::Claimed { added: added @ None }) => {
                *added = Some((lane, now));
                return AddResult::Deferred;
            }
            Some(KeyState::Claimed { added: Some((previous_lane, _)) }) => {
                *previous_lane = lane.max(*previous_lane);
            }
            Some(KeyState::Queued { lane: previous_lane, ticket, queued_at }) if lane > *previous_lane => {
                let (ticket, queued_at) = (*ticket, *queued_at);
                self.slow.remove(&ticket);
                self.enqueue(key, lane, queued_at);
            }
            Some(KeyState::Queued { .. }) => {}
        }
        AddResult::Duplicate
    }

    /// Claims the next key, if any, until [`done`](Self::done). Also returns the time at which the key was queued.
    pub(super) fn claim(&mut self) -> Option<(Arc<Key>, Instant)> {
        let key = self.pop()?;
        let state = self.states.insert(key.clone(), KeyState::Claimed { added: None });
        let queued_at = match state {
            Some(KeyState::Queued { queued_at, .. }) => queued_at,
            _ => Instant::now(),
        };
        Some((key, queued_at))
    }

    /// Ends the claim. Returns true if the key was added during the claim, and so is queued again.
    pub(super) fn done(&mut self, key: &Arc<Key>) -> bool {
        let Some(KeyState::Claimed { added }) = self.states.remove(key) else { return false };
        if let Some((lane, added_at)) = added {
            self.enqueue(key.clone(), lane, added_at);
        }
        shrink(&mut self.states);
        added.is_some()
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
            self.states.remove(key);
        }
        shrink(&mut self.states);
        keys
    }

    fn enqueue(&mut self, key: Arc<Key>, lane: Lane, queued_at: Instant) {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let keys = match lane {
            Lane::Fast => &mut self.fast,
            Lane::Slow => &mut self.slow,
        };
        keys.insert(ticket, key.clone());
        self.states.insert(key, KeyState::Queued { lane, ticket, queued_at });
    }

    fn pop(&mut self) -> Option<Arc<Key>> {
        let has_slow = !self.slow.is_empty();
        if self.fast.is_empty() || (has_slow && self.fast_in_a_row >= MAX_FAST_IN_A_ROW) {
            self.fast_in_a_row = 0;
            return self.slow.pop_first().map(|(_, key)| key);
        }
        self.fast_in_a_row = if has_slow { self.fast_in_a_row + 1 } else { 0 };
        self.fast.pop_first().map(|(_, key)| key)
    }
}

/// Releases the unused capacity that remains after a burst of keys, such as the first list or a resync.
pub(super) fn shrink<T>(map: &mut HashMap<Arc<Key>, T>) {
    let needed = map.len().max(MIN_KEYS);
    if map.capacity() / 8 > needed {
        map.shrink_to(2 * needed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_after_a_burst_of_keys_is_released_and_no_key_is_lost() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let key = |n: usize| Arc::new(Key::new("default", &n.to_string()));
        for n in 0..100_000 {
            assert_eq!(lanes.add(key(n), Lane::Fast, now), AddResult::Queued);
        }
        for n in 0..100_000 {
            let (claimed, _) = lanes.claim().unwrap();
            assert_eq!(claimed, key(n));
            assert!(!lanes.done(&claimed));
        }
        assert!(
            lanes.states.is_empty() && lanes.states.capacity() <= 8 * MIN_KEYS,
            "{}",
            lanes.states.capacity()
        );
    }
}
