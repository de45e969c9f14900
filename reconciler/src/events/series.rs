//! The recently stored events. A repetition is counted in the series of the stored event.

use std::time::Duration;

use reknit_apis::internal::HashMap;
use tokio::time::Instant;

use super::{event::EventType, pending::PendingEvent};

/// The time after its last occurrence within which an event is a repetition, as in client-go.
const SERIES_WINDOW: Duration = Duration::from_secs(6 * 60);
const CAPACITY: usize = 4096;

/// The controller and the object of an event: the key of client-go's spam filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SpamKey {
    object: [Option<String>; 4],
    controller: String,
}

/// The fields that two events have in common if one repeats the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint {
    pub(super) spam_key: SpamKey,
    type_: EventType,
    reason: String,
    note: String,
}

impl Fingerprint {
    pub(super) fn of(pending: &PendingEvent) -> Self {
        let regarding = pending.regarding.clone();
        let object = [regarding.uid, regarding.kind, regarding.namespace, regarding.name];
        Self {
            spam_key: SpamKey { object, controller: pending.controller.to_string() },
            type_: pending.event.type_,
            reason: pending.event.reason.clone(),
            note: pending.event.message.clone(),
        }
    }
}

/// A stored event, and the number of its occurrences.
#[derive(Clone, Debug)]
pub(super) struct SeriesEntry {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) count: i32,
    last_occurrence: Instant,
}

/// The events stored in the last six minutes, up to a fixed number.
#[derive(Debug, Default)]
pub(super) struct Series(pub(super) HashMap<Fingerprint, SeriesEntry>);

impl Series {
    /// Counts a repetition, and returns the stored event. `None` if the event does not repeat a stored one.
    pub(super) fn repeat(&mut self, fingerprint: &Fingerprint) -> Option<SeriesEntry> {
        let stored =
            self.0.get_mut(fingerprint).filter(|stored| stored.last_occurrence.elapsed() <= SERIES_WINDOW)?;
        stored.count = stored.count.saturating_add(1);
        stored.last_occurrence = Instant::now();
        Some(stored.clone())
    }

    pub(super) fn insert(&mut self, fingerprint: Fingerprint, namespace: &str, name: &str) {
        self.make_room();
        let (namespace, name) = (namespace.into(), name.into());
        self.0
            .insert(fingerprint, SeriesEntry { namespace, name, count: 1, last_occurrence: Instant::now() });
    }

    pub(super) fn remove(&mut self, fingerprint: &Fingerprint) {
        self.0.remove(fingerprint);
    }

    fn make_room(&mut self) {
        if self.0.len() < CAPACITY {
            return;
        }
        self.0.retain(|_, stored| stored.last_occurrence.elapsed() <= SERIES_WINDOW);
        let oldest = self
            .0
            .iter()
            .min_by_key(|(_, stored)| stored.last_occurrence)
            .map(|(fingerprint, _)| fingerprint.clone());
        if let Some(oldest) = oldest.filter(|_| self.0.len() >= CAPACITY) {
            self.0.remove(&oldest);
        }
    }
}
