//! The events that were stored lately. A repetition is counted on the stored event.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::pending::PendingEvent;

/// The time after its last occurrence within which an event is a repetition, as in client-go.
const SERIES_WINDOW: Duration = Duration::from_secs(6 * 60);
const CAPACITY: usize = 4096;

/// A controller and the object of its events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source {
    object: [Option<String>; 4],
    controller: String,
}

/// The fields by which two events are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint {
    pub(super) source: Source,
    normal: bool,
    reason: String,
    note: String,
}

impl Fingerprint {
    pub(super) fn of(pending: &PendingEvent) -> Self {
        let about = pending.regarding.clone();
        let object = [about.uid, about.kind, about.namespace, about.name];
        Self {
            source: Source { object, controller: pending.controller.to_string() },
            normal: pending.event.normal,
            reason: pending.reason().into(),
            note: pending.note().into(),
        }
    }
}

/// A stored event and the number of its occurrences.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) count: i32,
    last: Instant,
}

/// The events stored in the last six minutes, up to a fixed number.
#[derive(Debug, Default)]
pub(super) struct Series(pub(super) HashMap<Fingerprint, Stored>);

impl Series {
    /// Counts one more occurrence, if the event is a repetition.
    pub(super) fn repeat(&mut self, event: &Fingerprint) -> Option<Stored> {
        let stored = self.0.get_mut(event).filter(|stored| stored.last.elapsed() <= SERIES_WINDOW)?;
        stored.count = stored.count.saturating_add(1);
        stored.last = Instant::now();
        Some(stored.clone())
    }

    pub(super) fn insert(&mut self, event: Fingerprint, namespace: &str, name: &str) {
        self.make_room();
        let (namespace, name) = (namespace.into(), name.into());
        self.0.insert(event, Stored { namespace, name, count: 1, last: Instant::now() });
    }

    pub(super) fn remove(&mut self, event: &Fingerprint) {
        self.0.remove(event);
    }

    fn make_room(&mut self) {
        if self.0.len() < CAPACITY {
            return;
        }
        self.0.retain(|_, stored| stored.last.elapsed() <= SERIES_WINDOW);
        let oldest = self.0.iter().min_by_key(|(_, stored)| stored.last).map(|(event, _)| event.clone());
        if let Some(oldest) = oldest.filter(|_| self.0.len() >= CAPACITY) {
            self.0.remove(&oldest);
        }
    }
}
