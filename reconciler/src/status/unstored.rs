//! Changes of statuses that the API server accepted but did not store, usually because the schema of the Kind lacks a
//! field.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use parking_lot::Mutex;
use reknit_apis::{Key, Kind, equality::dropped_fields, internal::HashMap};
use reknit_injection::internal::LogLimit;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::diff::{diff, has_merged};
use crate::{Event, Recorder, metrics::PassMetrics};

/// The time after which a change that was not stored is sent again: the definition of the Kind may have changed.
pub(crate) const SEND_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// The maximum number of fields that a report names.
const MAX_FIELDS: usize = 10;

/// The changes that the API server did not store, by object. They are reported, and not sent again for ten minutes.
pub(crate) struct UnstoredChanges {
    recorder: Recorder,
    metrics: PassMetrics,
    hash_builder: RandomState,
    changes: Mutex<HashMap<Key, Unstored>>,
    logged: Mutex<LogLimit<String>>,
}

/// The change of one object that was not stored.
struct Unstored {
    hash: u64,
    since: Instant,
    /// True if the API server dropped fields. It may also have stored other values.
    is_dropped: bool,
}

impl UnstoredChanges {
    pub(crate) fn new(recorder: Recorder, metrics: PassMetrics) -> Self {
        let hash_builder = RandomState::new();
        Self { recorder, metrics, hash_builder, changes: Mutex::default(), logged: Mutex::default() }
    }

    /// Returns true if the API server has lately not stored this very change of the object.
    pub(super) fn contains<K: Kind>(&self, object: &K, change: &Value) -> bool {
        let changes = self.changes.lock();
        if changes.is_empty() {
            return false;
        }
        let key = Key::of(object);
        let Some(known) = changes.get(&key) else { return false };
        let contains = known.since.elapsed() < SEND_AGAIN_AFTER && known.hash == self.hash(object, change);
        if contains && known.is_dropped {
            self.metrics.with_dropped_status_fields().add(&key);
        }
        contains
    }

    /// Compares the change with the status in the answer, and remembers the part that was not stored.
    pub(super) fn check<K: Kind>(&self, object: &K, change: &Value, answered: &Value) {
        if has_merged(answered, change) {
            return self.forget(&Key::of(object));
        }
        let mut expected = answered.clone();
        json_patch::merge(&mut expected, change);
        let Some(unstored) = diff(answered, expected) else { return self.forget(&Key::of(object)) };
        let mut fields = dropped_fields(&json!({ "status": unstored }), &json!({ "status": answered }));
        let (key, hash, is_dropped) = (Key::of(object), self.hash(object, &unstored), !fields.is_empty());
        match is_dropped {
            true => self.metrics.with_dropped_status_fields().add(&key),
            false => self.metrics.with_dropped_status_fields().remove(&key),
        };
        self.changes.lock().insert(key, Unstored { hash, since: Instant::now(), is_dropped });
        fields.truncate(MAX_FIELDS);
        if is_dropped {
            self.report(object, &fields.join(", "));
        }
    }

    /// Records that the pass changes nothing in the status. The API server need not be asked again if a later one does.
    pub(crate) fn nothing_to_store(&self, key: &Key) {
        self.metrics.with_dropped_status_fields().remove(key);
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.nothing_to_store(key);
        let mut changes = self.changes.lock();
        if !changes.is_empty() {
            changes.remove(key);
        }
    }

    fn report<K: Kind>(&self, object: &K, fields: &str) {
        self.metrics.record_dropped_status_fields();
        let kind = K::kind(&());
        let advice = format!("add them to the schema of {kind}'s CustomResourceDefinition");
        if self.logged.lock().allows(&fields.to_owned()) {
            tracing::warn!(fields, "the API server did not store fields of the status: {advice}");
        }
        let message = format!("the API server did not store {fields}: {advice}");
        self.recorder.record(object, Event::warning("StatusFieldsDropped", message));
    }

    /// The hash of a change without transition times, which may be new in each pass for a condition whose field is not
    /// stored. Includes the uid: another object of this name has not been asked yet.
    fn hash<K: Kind>(&self, object: &K, change: &Value) -> u64 {
        let mut change = change.clone();
        remove_transition_times(&mut change);
        self.hash_builder.hash_one((&object.meta().uid, &change))
    }
}

fn remove_transition_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("lastTransitionTime");
            fields.values_mut().for_each(remove_transition_times);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_transition_times),
        _ => {}
    }
}
