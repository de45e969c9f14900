//! An event that waits to be published, cut to the limits of the events API.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event as StoredEvent},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::api::ObjectMeta;
use reknit_apis::dns_subdomain;

use super::event::Event;

const MAX_NOTE: usize = 1024;
/// The limit of reasons and reporting instances, in bytes.
const MAX_WORD: usize = 128;
/// The limit of reporting controllers, in bytes. The API server validates them like label keys.
const MAX_CONTROLLER: usize = 63;

/// An event that is not published yet.
pub(super) struct PendingEvent {
    pub(super) regarding: ObjectReference,
    pub(super) event: Event,
    pub(super) controller: Arc<str>,
    /// The name of the stored event. A retry uses it again.
    pub(super) name: String,
    pub(super) time: MicroTime,
}

impl PendingEvent {
    pub(super) fn new(regarding: ObjectReference, event: Event, controller: Arc<str>) -> Self {
        let name = event_name(regarding.name.as_deref().unwrap_or_default());
        Self { regarding, event, controller, name, time: MicroTime(Timestamp::now()) }
    }

    /// The namespace of the stored event. Events about cluster-scoped objects are namespaced too.
    pub(super) fn namespace(&self) -> &str {
        self.regarding.namespace.as_deref().unwrap_or("default")
    }

    pub(super) fn reason(&self) -> &str {
        cut(&self.event.reason, MAX_WORD)
    }

    pub(super) fn note(&self) -> &str {
        cut(&self.event.message, MAX_NOTE)
    }

    pub(super) fn to_stored(&self, instance: &str) -> StoredEvent {
        let reason = self.reason();
        StoredEvent {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace().into()),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".into()),
            event_time: Some(self.time.clone()),
            note: Some(self.note().into()),
            reason: Some(if reason.is_empty() { "Unspecified" } else { reason }.into()),
            regarding: Some(self.regarding.clone()),
            reporting_controller: Some(self.controller.to_string()),
            reporting_instance: Some(instance.into()),
            type_: Some(self.event.type_.as_str().into()),
            ..StoredEvent::default()
        }
    }
}

/// The object's name and a random suffix, as client-go names events.
fn event_name(object: &str) -> String {
    let prefix = if dns_subdomain(object).is_empty() {
        cut(object, 230).trim_end_matches(['.', '-'])
    } else {
        "event"
    };
    format!("{prefix}.{:016x}", rand::random::<u64>())
}

/// The reporting instance: the name of the pod from `POD_NAME`, or of the host.
pub(super) fn reporting_instance() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    let instance = pod.unwrap_or_else(|| gethostname::gethostname().to_string_lossy().into_owned());
    cut(&instance, MAX_WORD).into()
}

/// The controller's name, cut to what the events API allows.
pub(super) fn reporting_controller(name: &str) -> &str {
    cut(name, MAX_CONTROLLER).trim_end_matches(['-', '.', '_'])
}

/// Cuts the text to at most this many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}
