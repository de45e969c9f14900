//! Records events about objects, beside the passes: an event never delays nor decides one.

mod budget;
mod publisher;
mod series;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use reknit_injection::{Context, Inject};

use self::publisher::{Publisher, Waiting};
use crate::Event;

/// Records events in the name of one controller. Cheap to clone; comes from
/// [`Builder::recorder`](crate::Builder::recorder).
///
/// Recording never waits: events are published in the background, in order. The same event about the same object
/// within six minutes is counted on the first (its `series`) instead of stored again. As in client-go, a controller
/// sends 25 about one object, and then one in five minutes: one that repeats another is counted on the next that is sent
/// then. Any other that is too many is dropped, as is one where more than a thousand wait, or that the API server
/// refuses: counted in `reknit_events_dropped_total`, and said in the log once a minute.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use reknit_reconciler::{Event, Recorder};
///
/// fn evicted(recorder: &Recorder, pod: &Pod) {
///     recorder.record(pod, Event::warning("Evicted", "the node is going down"));
/// }
/// ```
#[derive(Clone)]
pub struct Recorder {
    publisher: Publisher,
    controller: Arc<str>,
}

impl Recorder {
    pub(crate) fn new(cx: &Context, controller: &str) -> Self {
        Self { publisher: cx.get(), controller: publisher::controller(controller).into() }
    }

    /// Records an event about this object. Events about cluster-scoped objects lie in the namespace `default`.
    pub fn record(&self, about: &impl Resource<DynamicType = ()>, event: Event) {
        self.record_at(about.object_ref(&()), event);
    }

    /// The same about an object that is only known by reference.
    pub(crate) fn record_at(&self, regarding: ObjectReference, event: Event) {
        self.publisher.publish(Waiting::new(regarding, event, self.controller.clone()));
    }

    /// Waits until everything that was recorded so far is published or dropped. Nothing is tried again meanwhile.
    pub async fn flush(&self) {
        self.publisher.flush().await;
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("controller", &self.controller).finish_non_exhaustive()
    }
}

/// Records in the name of the component rather than of one of its controllers: for what runs beside them.
impl Inject for Recorder {
    fn inject(cx: &Context) -> Self {
        Self::new(cx, cx.component())
    }
}
