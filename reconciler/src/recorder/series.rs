//! Which events were recorded lately, so that the same one again is counted rather than stored.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::publisher::Waiting;

/// How long after its last occurrence an event is still the same one.
const WITHIN: Duration = Duration::from_secs(6 * 60);
const CAPACITY: usize = 4096;

/// Which controller speaks of which object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source {
    object: [Option<String>; 4],
    controller: String,
}

/// Everything that makes two events the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint {
    pub(super) source: Source,
    normal: bool,
    reason: String,
    note: String,
}

impl Fingerprint {
    pub(super) fn of(waiting: &Waiting, reason: &str, note: &str) -> Self {
        let about = waiting.regarding.clone();
        let object = [about.uid, about.kind, about.namespace, about.name];
        Self {
            source: Source { object, controller: waiting.controller.to_string() },
            normal: waiting.event.normal,
            reason: reason.into(),
            note: note.into(),
        }
    }
}

/// A stored event that may be seen again.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) count: i32,
    last: Instant,
}

/// The events stored in the last six minutes, as many as there is room for.
#[derive(Debug, Default)]
pub(super) struct Series(HashMap<Fingerprint, Seen>);

impl Series {
    /// Counts the event once more, if it is one of these.
    pub(super) fn again(&mut self, event: &Fingerprint) -> Option<Seen> {
        let seen = self.0.get_mut(event).filter(|seen| seen.last.elapsed() <= WITHIN)?;
        seen.count = seen.count.saturating_add(1);
        seen.last = Instant::now();
        Some(seen.clone())
    }

    /// Notes an event that was stored.
    pub(super) fn stored(&mut self, event: Fingerprint, namespace: String, name: String) {
        self.make_room();
        self.0.insert(event, Seen { namespace, name, count: 1, last: Instant::now() });
    }

    /// Forgets an event that is stored no longer.
    pub(super) fn lost(&mut self, event: &Fingerprint) {
        self.0.remove(event);
    }

    fn make_room(&mut self) {
        if self.0.len() < CAPACITY {
            return;
        }
        self.0.retain(|_, seen| seen.last.elapsed() <= WITHIN);
        let oldest = self.0.iter().min_by_key(|(_, seen)| seen.last).map(|(event, _)| event.clone());
        if let Some(oldest) = oldest.filter(|_| self.0.len() >= CAPACITY) {
            self.0.remove(&oldest);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
