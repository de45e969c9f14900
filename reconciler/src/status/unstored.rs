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
    hashes: Mutex<HashMap<Key, (u64, Instant)>>,
    logged: Mutex<LogLimit<String>>,
}

impl UnstoredChanges {
    pub(crate) fn new(recorder: Recorder, metrics: PassMetrics) -> Self {
        let hash_builder = RandomState::new();
        Self { recorder, metrics, hash_builder, hashes: Mutex::default(), logged: Mutex::default() }
    }

    /// Returns true if the API server has lately not stored this very change of the object.
    pub(super) fn contains<K: Kind>(&self, object: &K, change: &Value) -> bool {
        let hashes = self.hashes.lock();
        if hashes.is_empty() {
            return false;
        }
        let Some((hash, since)) = hashes.get(&Key::of(object)) else { return false };
        since.elapsed() < SEND_AGAIN_AFTER && *hash == self.hash(object, change)
    }

    /// Compares the change with the status in the answer, and remembers the part that was not stored.
    pub(super) fn check<K: Kind>(&self, object: &K, change: &Value, answered: &Value) {
        if has_merged(answered, change) {
            return self.forget(&Key::of(object));
        }
        let mut expected = answered.clone();
        json_patch::merge(&mut expected, change);
        let Some(unstored) = diff(answered, expected) else { return self.forget(&Key::of(object)) };
        self.hashes.lock().insert(Key::of(object), (self.hash(object, &unstored), Instant::now()));
        let mut fields = dropped_fields(&json!({ "status": unstored }), &json!({ "status": answered }));
        fields.truncate(MAX_FIELDS);
        if !fields.is_empty() {
            self.report(object, &fields.join(", "));
        }
    }

    pub(crate) fn forget(&self, key: &Key) {
        let mut hashes = self.hashes.lock();
        if !hashes.is_empty() {
            hashes.remove(key);
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
