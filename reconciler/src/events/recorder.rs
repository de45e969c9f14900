//! Records events in the background: an event never delays a reconcile or changes its result.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use reknit_injection::{Context, Inject, Permission, Verb, internal::has_term_ended};

use super::{
    event::Event,
    pending::{PendingEvent, reporting_controller},
    publisher::Publisher,
};

/// Records events in the name of one controller. Cheap to clone. Comes from
/// [`Builder::recorder`](crate::Builder::recorder).
///
/// Recording never waits: events are published in the background, those of one namespace in order, and namespaces take
/// turns. The same event about the same object within six minutes of the last one is counted in the `series` of the first
/// one.
///
/// As in client-go, a controller may send 25 events about one object at once, and then one every five minutes. Beyond
/// this limit, an event that was sent before is only counted, and its count is sent with its next repetition within the
/// limit; an event that was not sent before is dropped. Events are also dropped if the API server rejects them, and while
/// more than a thousand wait: then the namespace with the most waiting events loses its last one. Dropped events are counted in `reknit_events_dropped_total` and logged once a minute.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use reknit_reconciler::{Event, Recorder};
///
/// fn evicted(recorder: &Recorder, pod: &Pod) {
///     recorder.record(pod, Event::warning("Evicted", "the node is going down"));
/// }
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("Recorder {{ controller: {controller:?}, .. }}")]
pub struct Recorder {
    publisher: Publisher,
    controller: Arc<str>,
}

impl Recorder {
    pub(crate) fn new(cx: &Context, controller: &str) -> Self {
        Self { publisher: cx.get(), controller: reporting_controller(controller).into() }
    }

    /// Records an event about this object. Events about cluster-scoped objects are in the namespace `default`. A pass
    /// that has lost its leadership records no events.
    pub fn record(&self, about: &impl Resource<DynamicType = ()>, event: Event) {
        self.record_at(about.object_ref(&()), event);
    }

    /// Records an event about an object of which only the reference is known.
    pub(crate) fn record_at(&self, regarding: ObjectReference, event: Event) {
        if has_term_ended() {
            return; // the pass is dropped
        }
        self.publisher.publish(PendingEvent::new(regarding, event, self.controller.clone()));
    }

    /// Waits until all events recorded so far are published or dropped. Failed requests are not retried meanwhile.
    pub async fn flush(&self) {
        self.publisher.flush().await;
    }
}

/// The permission to publish events. A repeated event is patched into a series.
pub(crate) fn event_permission() -> Permission {
    Permission::new("events.k8s.io", "events", [Verb::Create, Verb::Patch])
}

/// A recorder from the Context records in the name of the component, not of one of its controllers.
impl Inject for Recorder {
    fn inject(cx: &Context) -> Self {
        cx.allows(event_permission());
        Self::new(cx, cx.component())
    }
}
