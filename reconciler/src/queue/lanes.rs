//! The lanes of the queue, fast and slow, and two that hold keys; and the keys that workers have claimed from them.

use std::{borrow::Borrow, sync::Arc};

use reknit_apis::{Key, internal::HashMap};
use tokio::time::Instant;

use reknit_injection::internal::Writers;

use super::cause::{Cause, Causes};
use crate::{capacity::shrink, turns::Turns};

/// The number of fast keys in a row after which a waiting slow key gets its turn.
const MAX_FAST_IN_A_ROW: u32 = 9;

/// A lane of the queue. A key that is added again moves to a greater lane, and never to a smaller one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// The lane of keys in a [storm](super::storms), which are not claimed before they are released.
    HeldByStorm,
    /// The lane of keys that the brake holds.
    HeldByBrake,
    /// The lane of keys that a resync or a promotion enqueues, many at once.
    Slow,
    /// The lane of keys that an event enqueues, such as a change of the object.
    Fast,
}

impl Lane {
    /// Returns true if keys wait in this lane until they are released.
    fn is_holding(self) -> bool {
        matches!(self, Self::HeldByStorm | Self::HeldByBrake)
    }
}

/// The queued and the claimed keys. Each key is held once. In each lane, namespaces take turns.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    states: HashMap<Arc<Key>, KeyState>,
    fast: Turns<Arc<Key>>,
    slow: Turns<Arc<Key>>,
    held_by_brake: Turns<Arc<Key>>,
    held_by_storm: Turns<Arc<Key>>,
    fast_in_a_row: u32,
}

#[derive(Debug)]
enum KeyState {
    Queued {
        lane: Lane,
        ticket: u64,
        queued_at: Instant,
        causes: Causes,
    },
    /// `added`: the lane, the time and the causes of the adds during the claim.
    Claimed {
        added: Option<(Lane, Instant, Causes)>,
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
    /// Adds a key. A key of the slow lane that is added to the fast lane moves to the fast lane. `prompted`: the cause
    /// continues a pass that was prompted.
    pub(super) fn add(
        &mut self,
        key: impl Into<Arc<Key>> + Borrow<Key>,
        lane: Lane,
        now: Instant,
        (cause, prompted): (Cause, bool),
        writers: &Writers,
    ) -> AddResult {
        match self.states.get_mut(key.borrow()) {
            None => {
                let mut causes = Causes::default();
                causes.add(cause, prompted, writers);
                self.enqueue(key.into(), lane, now, causes);
                return AddResult::Queued;
            }
            Some(KeyState::Claimed { added: added @ None }) => {
                let (.., causes) = added.insert((lane, now, Causes::default()));
                causes.add(cause, prompted, writers);
                return AddResult::Deferred;
            }
            Some(KeyState::Claimed { added: Some((previous_lane, _, causes)) }) => {
                *previous_lane = lane.max(*previous_lane);
                causes.add(cause, prompted, writers);
            }
            Some(KeyState::Queued { lane: previous_lane, ticket, queued_at, causes }) => {
                causes.add(cause, prompted, writers);
                if lane > *previous_lane {
                    let (previous_lane, ticket, causes) = (*previous_lane, *ticket, std::mem::take(causes));
                    // A held key did not wait for a worker.
                    let queued_at = if previous_lane.is_holding() { now } else { *queued_at };
                    let key = key.into();
                    self.keys_of(previous_lane).remove(key.namespace.as_deref(), ticket);
                    self.enqueue(key, lane, queued_at, causes);
                    if previous_lane.is_holding() {
                        return AddResult::Queued;
                    }
                }
            }
        }
        AddResult::Duplicate
    }

    /// Claims the next key of a namespace for which `admits` returns true, until [`done`](Self::done); a held key only if
    /// `releases`. Also returns its lane, the time at which the key was queued, and why.
    pub(super) fn claim(
        &mut self,
        admits: impl Fn(&str) -> bool,
        releases: bool,
    ) -> Option<(Arc<Key>, Lane, Instant, Causes)> {
        let key = self.pop(admits, releases)?;
        let state = self.states.insert(key.clone(), KeyState::Claimed { added: None });
        let (lane, queued_at, causes) = match state {
            Some(KeyState::Queued { lane, queued_at, causes, .. }) => (lane, queued_at, causes),
            _ => (Lane::Fast, Instant::now(), Causes::default()),
        };
        Some((key, lane, queued_at, causes))
    }

    /// Ends the claim, and holds the key for these causes in this lane. If the key was added during the claim, it goes to the
    /// greater of the two lanes.
    pub(super) fn hold(
        &mut self,
        key: &Arc<Key>,
        mut lane: Lane,
        mut causes: Causes,
        now: Instant,
        writers: &Writers,
    ) {
        let Some(KeyState::Claimed { added }) = self.states.remove(key) else { return };
        if let Some((added_lane, _, added)) = added {
            lane = added_lane;
            causes.merge(added, writers);
        }
        self.enqueue(key.clone(), lane, now, causes);
    }

    /// Queues a key that is held in a storm, if it still is.
    pub(super) fn release_from_storm(&mut self, key: &Arc<Key>, now: Instant) {
        if let Some(KeyState::Queued { lane: Lane::HeldByStorm, ticket, causes, .. }) =
            self.states.get_mut(key)
        {
            let (ticket, causes) = (*ticket, std::mem::take(causes));
            self.held_by_storm.remove(key.namespace.as_deref(), ticket);
            self.enqueue(key.clone(), Lane::Fast, now, causes);
        }
    }

    /// Ends the claim. Returns true if the key was added during the claim, and so is queued again.
    pub(super) fn done(&mut self, key: &Arc<Key>, writers: &Writers) -> bool {
        let Some(KeyState::Claimed { added }) = self.states.remove(key) else { return false };
        let is_added = added.is_some();
        if let Some((lane, added_at, mut causes)) = added {
            causes.find_writers(writers); // the pass has the answers to its writes
            self.enqueue(key.clone(), lane, added_at, causes);
        }
        shrink(&mut self.states);
        is_added
    }

    /// The number of queued keys that are not held.
    pub(super) fn len(&self) -> usize {
        self.fast.len() + self.slow.len()
    }

    /// The number of keys that are queued in this lane.
    pub(super) fn len_of(&self, lane: Lane) -> usize {
        match lane {
            Lane::Fast => self.fast.len(),
            Lane::Slow => self.slow.len(),
            Lane::HeldByBrake => self.held_by_brake.len(),
            Lane::HeldByStorm => self.held_by_storm.len(),
        }
    }

    /// The number of keys that the brake or a storm holds.
    pub(super) fn held(&self) -> usize {
        self.held_by_brake.len() + self.held_by_storm.len()
    }

    /// Returns true if the key is queued or claimed.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.states.contains_key(key)
    }

    /// The queued keys with their lanes, the times at which they were queued, and their causes.
    pub(super) fn queued(&self) -> impl Iterator<Item = (&Arc<Key>, Lane, Instant, &Causes)> {
        self.states.iter().filter_map(|(key, state)| match state {
            KeyState::Queued { lane, queued_at, causes, .. } => Some((key, *lane, *queued_at, causes)),
            KeyState::Claimed { .. } => None,
        })
    }

    /// Removes and returns the queued keys with their causes.
    pub(super) fn take_all(&mut self) -> Vec<(Arc<Key>, Causes)> {
        let lanes =
            [&mut self.fast, &mut self.slow, &mut self.held_by_brake, &mut self.held_by_storm].into_iter();
        let keys: Vec<_> = lanes.flat_map(|lane| std::iter::from_fn(|| lane.pop())).collect();
        let causes_of = |state| match state {
            Some(KeyState::Queued { causes, .. }) => causes,
            _ => Causes::default(),
        };
        let taken = keys.into_iter().map(|key| {
            let causes = causes_of(self.states.remove(&key));
            (key, causes)
        });
        let taken = taken.collect();
        shrink(&mut self.states);
        taken
    }

    fn enqueue(&mut self, key: Arc<Key>, lane: Lane, queued_at: Instant, causes: Causes) {
        let ticket = self.keys_of(lane).push(key.namespace.as_deref(), key.clone());
        self.states.insert(key, KeyState::Queued { lane, ticket, queued_at, causes });
    }

    fn keys_of(&mut self, lane: Lane) -> &mut Turns<Arc<Key>> {
        match lane {
            Lane::Fast => &mut self.fast,
            Lane::Slow => &mut self.slow,
            Lane::HeldByBrake => &mut self.held_by_brake,
            Lane::HeldByStorm => &mut self.held_by_storm,
        }
    }

    /// Removes the next key. Held keys, if `releases`, go before those of the slow lane.
    fn pop(&mut self, admits: impl Fn(&str) -> bool, releases: bool) -> Option<Arc<Key>> {
        let has_slow = !self.slow.is_empty() || (releases && !self.held_by_brake.is_empty());
        let is_slow_turn = has_slow && self.fast_in_a_row >= MAX_FAST_IN_A_ROW;
        if !is_slow_turn && let Some(key) = self.fast.pop_where(&admits) {
            self.fast_in_a_row = if has_slow { self.fast_in_a_row + 1 } else { 0 };
            return Some(key);
        }
        let held = if releases { self.held_by_brake.pop_where(&admits) } else { None };
        match held.or_else(|| self.slow.pop_where(&admits)) {
            Some(key) => {
                self.fast_in_a_row = 0;
                Some(key)
            }
            None if is_slow_turn => self.fast.pop_where(&admits),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::MIN_KEYS;

    #[test]
    fn the_capacity_after_a_burst_of_keys_is_released_and_no_key_is_lost() {
        let (mut lanes, now, writers) = (Lanes::default(), Instant::now(), Writers::default());
        let key = |n: usize| Arc::new(Key::new("default", &n.to_string()));
        for n in 0..100_000 {
            assert_eq!(
                lanes.add(key(n), Lane::Fast, now, (Cause::Start, false), &writers),
                AddResult::Queued
            );
        }
        for n in 0..100_000 {
            let (claimed, ..) = lanes.claim(|_| true, false).unwrap();
            assert_eq!(claimed, key(n));
            assert!(!lanes.done(&claimed, &writers));
        }
        assert!(
            lanes.states.is_empty() && lanes.states.capacity() <= 8 * MIN_KEYS,
            "{}",
            lanes.states.capacity()
        );
    }
}
