//! An event that waits to be published, cut to the limits of the events API.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event as StoredEvent},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::api::ObjectMeta;
use reknit_apis::{Bounds, dns_subdomain, qualified_name};
use reknit_injection::internal::{host_name, now, random, variable};

use super::event::Event;

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
        let name = event_name(&regarding, &controller);
        Self { regarding, event, controller, name, time: MicroTime(now()) }
    }

    /// The namespace of the stored event. Events about cluster-scoped objects are namespaced too.
    pub(super) fn namespace(&self) -> &str {
        self.regarding.namespace.as_deref().unwrap_or("default")
    }

    pub(super) fn reason(&self) -> Cow<'_, str> {
        Bounds::EVENT_REASON.apply(&self.event.reason)
    }

    pub(super) fn note(&self) -> Cow<'_, str> {
        Bounds::EVENT_NOTE.apply(&self.event.message)
    }

    pub(super) fn to_stored(&self, instance: &str) -> StoredEvent {
        StoredEvent {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace().into()),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".into()),
            event_time: Some(self.time.clone()),
            note: Some(self.note().into()),
            reason: Some(self.reason().into()),
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
