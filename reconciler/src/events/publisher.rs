//! Publishes recorded events from a bounded queue. One task at a time sends them.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::events::v1::Event as StoredEvent;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use reknit_injection::{
    Context, Inject,
    internal::{is_absence, retry_after_of},
};
use serde_json::json;
use tokio::{runtime, sync::Notify};

use super::{
    budget::Budgets,
    dropped::DroppedEvents,
    pending::{PendingEvent, reporting_instance},
    series::{Fingerprint, Series, SeriesEntry},
};
use crate::{error::describe, metrics::Metrics, object_client::status_code, turns::Turns};

const CAPACITY: usize = 1000;
/// The pause before each retry of a request that got no answer, that an overloaded API server refused for longer than the
/// client retries it, or that conflicts with another change of a ResourceQuota.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The event publisher of a process.
#[derive(Clone)]
pub(super) struct Publisher(Arc<Inner>);

struct Inner {
    client: Client,
    instance: String,
    outbox: Mutex<Outbox>,
    /// Locked while a task publishes.
    published: tokio::sync::Mutex<Published>,
    /// The number of [`Publisher::flush`] calls in progress. During a flush, failed requests are not retried.
    running_flushes: AtomicUsize,
    flush_started: Notify,
    dropped: DroppedEvents,
}

/// The most recently published events, and the limits of further ones.
#[derive(Default)]
struct Published {
    series: Series,
    budgets: Budgets,
}

#[derive(Default)]
struct Outbox {
    pending: Turns<PendingEvent>,
    /// True if a task runs that publishes the pending events.
    has_task: bool,
}

impl Inject for Publisher {
    fn inject(cx: &Context) -> Self {
        Self(Arc::new(Inner {
            client: cx.client(),
            instance: reporting_instance(),
            outbox: Mutex::default(),
            published: tokio::sync::Mutex::default(),
            running_flushes: AtomicUsize::new(0),
            flush_started: Notify::new(),
            dropped: DroppedEvents::new(cx.get::<Metrics>().events_dropped),
        }))
    }
}

impl Publisher {
    /// Queues the event. If too many events wait, drops the last one of the namespace with the most. Starts a task that
    /// publishes the events unless a task runs. Outside a tokio runtime, the event waits for the next event or flush.
    pub(super) fn publish(&self, pending: PendingEvent) {
        let mut outbox = self.0.outbox.lock();
        let namespace = pending.regarding.namespace.clone();
        outbox.pending.push(namespace.as_deref(), pending);
        let excess = outbox.pending.len() > CAPACITY;
        let dropped = excess.then(|| outbox.pending.pop_last_of_longest()).flatten();
        if !outbox.has_task
            && let Ok(runtime) = runtime::Handle::try_current()
        {
            outbox.has_task = true;
            let publisher = self.clone();
            drop(runtime.spawn(async move { publisher.0.publish_all().await }));
        }
        drop(outbox);
        if let Some(dropped) = dropped {
            self.0.dropped.add(&dropped, "too many events wait to be published");
        }
    }

    pub(super) async fn flush(&self) {
        let _flushing = Flushing::start(&self.0);
        self.0.publish_all().await;
    }
}

/// A flush in progress, which is counted until this is dropped.
struct Flushing<'a>(&'a Inner);

impl<'a> Flushing<'a> {
    fn start(inner: &'a Inner) -> Self {
        inner.running_flushes.fetch_add(1, Ordering::SeqCst);
        inner.flush_started.notify_waiters();
        Self(inner)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.running_flushes.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Inner {
    async fn publish_all(&self) {
        let mut published = self.published.lock().await;
        while let Some(pending) = self.next_pending() {
            self.publish_one(&mut published, &pending).await;
        }
    }

    /// Takes the next event. If there is none, records that the task ends.
    fn next_pending(&self) -> Option<PendingEvent> {
        let mut outbox = self.outbox.lock();
        let next = outbox.pending.pop();
        outbox.has_task &= next.is_some();
        next
    }

    async fn publish_one(&self, Published { series, budgets }: &mut Published, pending: &PendingEvent) {
        let fingerprint = Fingerprint::of(pending);
        let mut repeated = series.repeat(&fingerprint);
        if !budgets.spend(&fingerprint.spam_key) {
            if repeated.is_none() {
                self.dropped.add(pending, "too many events about this object");
            }
            return; // a repetition is counted with the next event that is sent
        }
        let mut pauses = RETRY_PAUSES.into_iter();
        while let Err(error) = self.store(repeated.as_ref(), pending).await {
            if status_code(&error) == Some(404) && mem::take(&mut repeated).is_some() {
                series.remove(&fingerprint); // the stored event expired
                continue;
            }
            let asked = retry_after_of(&error);
            let is_temporary = asked.is_some() || matches!(status_code(&error), None | Some(409));
            match pauses.next().filter(|_| is_temporary) {
                Some(pause) if self.pause_before_retry(pause.max(asked.unwrap_or_default())).await => {}
                _ if is_namespace_terminating(&error) => return, // its events are deleted with it
                _ => return self.dropped.add(pending, &describe(&error)),
            }
        }
        if repeated.is_none() {
            series.insert(fingerprint, pending.namespace(), &pending.name);
        }
    }

    /// Waits before a retry. Returns false if a flush is in progress or starts: there is no retry then.
    async fn pause_before_retry(&self, pause: Duration) -> bool {
        let flush_started = self.flush_started.notified();
        if self.running_flushes.load(Ordering::SeqCst) > 0 {
            return false;
        }
        tokio::time::timeout(pause, flush_started).await.is_err()
    }

    /// Creates the event, or updates the series of the stored event that it repeats.
    async fn store(&self, repeated: Option<&SeriesEntry>, pending: &PendingEvent) -> kube::Result<()> {
        let events =
            |namespace: &str| -> Api<StoredEvent> { Api::namespaced(self.client.clone(), namespace) };
        if let Some(stored) = repeated {
            let body = json!({ "series": { "count": stored.count, "lastObservedTime": pending.time } });
            let events = events(&stored.namespace);
            return events.patch(&stored.name, &PatchParams::default(), &Patch::Merge(body)).await.map(drop);
        }
        let event = pending.to_stored(&self.instance);
        match events(pending.namespace()).create(&PostParams::default(), &event).await {
            // An earlier attempt succeeded, and its answer was lost. Another 409 is a conflict of a ResourceQuota.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            created => created.map(drop),
        }
    }
}

/// Returns true if the namespace accepts no new objects, or does not exist.
fn is_namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    is_absence(error) || causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}
