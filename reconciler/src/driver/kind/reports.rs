//! The events and log lines by which a controller with a Kind reports its passes.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use reknit_apis::{Key, Kind};

use super::KindDriver;
use crate::{Error, Event, Outcome, ReconcileKind, Result};

impl<R: ReconcileKind> KindDriver<R> {
    pub(super) fn report_pace(&self, key: &Key, per_minute: u32) {
        let uid = self.informer.get(key).and_then(|object| object.meta().uid.clone());
        let message = format!(
            "this object and others wait: the controller has changed more than the {per_minute} objects a minute that \
             --max-unprompted-changes allows without a change from outside; it goes on at that pace"
        );
        self.recorder.record_at(
            object_reference::<R::Kind>(key, uid),
            Event::warning("UnpromptedChangesPaced", message),
        );
    }

    pub(super) fn report_unwritten(&self, object: &R::Kind, error: &Error) {
        self.recorder.record(object, Event::warning("UpdateFailed", capitalised(&error.in_full())));
    }

    pub(super) fn report_bounded(&self, fields: &Vec<String>) {
        if !fields.is_empty() && self.bounded.lock().allows(fields) {
            let fields = fields.join(", ");
            tracing::warn!(
                fields,
                "conditions were cut or changed, because the API server would refuse them: let the reconciler set valid and \
                 shorter ones"
            );
        }
    }

    pub(super) fn record_result(&self, object: &R::Kind, result: &Result<Outcome>) {
        let event = match result {
            Ok(outcome) => outcome.recorded_event().cloned(),
            Err(error) => (!error.is_conflict() && !error.is_waiting()).then(|| failure_event(error)),
        };
        event.into_iter().for_each(|event| self.recorder.record(object, event));
    }

    /// Records an event at the object of the key, if it exists as far as the caches know.
    pub(super) fn record_if_known(&self, key: &Key, event: impl FnOnce() -> Event) {
        let uid_outside = || self.outside.as_ref().and_then(|outside| outside.get(key)?.metadata.uid.clone());
        if self.is_known(key) {
            let uid = self.informer.get(key).and_then(|object| object.meta().uid.clone());
            let reference = object_reference::<R::Kind>(key, uid.or_else(uid_outside));
            self.recorder.record_at(reference, event());
        }
    }
}

/// The warning event recorded for a failed pass.
pub(super) fn failure_event(error: &Error) -> Event {
    Event::warning(error.event_reason(), error.in_full())
}

pub(super) fn object_reference<K: Kind>(key: &Key, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(key.name.clone()),
        namespace: key.namespace.clone(),
        uid,
        ..ObjectReference::default()
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
