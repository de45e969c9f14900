//! An event that waits to be published, cut to the limits of the events API.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event as StoredEvent},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::api::ObjectMeta;
use reknit_apis::{Bounds, dns_subdomain, qualified_name};
use reknit_injection::internal::{CurrentPass, host_name, now, random, variable};

use super::event::{Event, EventType};

/// The annotation of a warning event with the causes of the pass.
const CAUSES: &str = "reknit.dev/causes";
/// The maximum length of the causes in bytes.
const MAX_CAUSES: usize = 1024;

/// An event that is not published yet. Its texts are cut at once: many events may wait, and a message may contain a text that
/// a user has chosen.
pub(super) struct PendingEvent {
    pub(super) regarding: ObjectReference,
    /// Its reason and its message are within the bounds.
    pub(super) event: Event,
    pub(super) controller: Arc<str>,
    /// The name of the stored event. A retry uses it again.
    pub(super) name: String,
    pub(super) time: MicroTime,
    /// The causes of the pass that recorded a warning.
    causes: Option<String>,
}

impl PendingEvent {
    pub(super) fn new(regarding: ObjectReference, event: Event, controller: Arc<str>) -> Self {
        let name = event_name(&regarding, &controller);
        let causes =
            CurrentPass::get().filter(|_| event.type_ == EventType::Warning).and_then(|pass| pass.causes());
        // The alternate form is the same for each run of a simulation.
        let causes = causes.map(|causes| format!("{causes:#}")).filter(|causes| !causes.is_empty());
        let causes = causes.map(|causes| causes[..causes.floor_char_boundary(MAX_CAUSES)].to_owned());
        let event = Event {
            reason: Bounds::EVENT_REASON.apply(&event.reason).into_owned(),
            message: Bounds::EVENT_NOTE.apply(&event.message).into_owned(),
            ..event
        };
        Self { regarding, event, controller, name, time: MicroTime(now()), causes }
    }

    /// The namespace of the stored event. Events about cluster-scoped objects are namespaced too.
    pub(super) fn namespace(&self) -> &str {
        self.regarding.namespace.as_deref().unwrap_or("default")
    }

    /// The annotation with the causes. It is not in the note, so that the same event for another cause is counted in the
    /// series of the first one.
    fn annotations(&self) -> Option<BTreeMap<String, String>> {
        let causes = self.causes.clone()?;
        Some([(CAUSES.to_owned(), causes)].into())
    }

    pub(super) fn to_stored(&self, instance: &str) -> StoredEvent {
        StoredEvent {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace().into()),
                annotations: self.annotations(),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".into()),
            event_time: Some(self.time.clone()),
            note: Some(self.event.message.clone()),
            reason: Some(self.event.reason.clone()),
            regarding: Some(self.regarding.clone()),
            reporting_controller: Some(self.controller.to_string()),
            reporting_instance: Some(instance.into()),
            type_: Some(self.event.type_.as_str().into()),
            ..StoredEvent::default()
        }
    }
}

/// The object's name and a random suffix, as client-go names events.
fn event_name(regarding: &ObjectReference, controller: &str) -> String {
    let object = regarding.name.as_deref().unwrap_or_default();
    let namespace = regarding.namespace.as_deref().unwrap_or_default();
    let prefix = if dns_subdomain(object).is_empty() {
        Bounds::LABEL_VALUE.within(230).apply(object)
    } else {
        "event".into()
    };
    format!("{prefix}.{:016x}", random(format_args!("event/{controller}/{namespace}/{object}")))
}

/// The reporting instance: the name of the pod from `POD_NAME`, or of the host.
pub(super) fn reporting_instance() -> String {
    let instance = variable("POD_NAME").unwrap_or_else(host_name);
    Bounds::REPORTING_INSTANCE.apply(&instance).into()
}

/// The controller's name in the form that the events API requires, that of a label's key.
pub(super) fn reporting_controller(name: &str) -> Cow<'_, str> {
    if qualified_name(name).is_empty() { name.into() } else { Bounds::LABEL_VALUE.apply(name) }
}
