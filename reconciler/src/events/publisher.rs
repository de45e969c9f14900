//! Publishes recorded events from a bounded queue. One task at a time sends them, and the namespaces take turns.

use std::{
    collections::BTreeMap,
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
use tokio::{
    runtime,
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{
    budget::Budgets,
    dropped::DroppedEvents,
    pending::{PendingEvent, reporting_instance},
    series::{Fingerprint, Series, SeriesEntry},
};
use crate::{
    error::describe,
    metrics::Metrics,
    object_client::{has_cause_namespace_terminating, status_code},
    turns::Turns,
};

const CAPACITY: usize = 1000;
/// The pause before each retry of a request that got no answer, that an overloaded API server refused for longer than the
/// client retries it, or that conflicts with another change of a ResourceQuota. An answer concerns one namespace, so the
/// events of others do not wait.
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
    /// Notified when an event is queued, and when a flush starts.
    changed: Notify,
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
    pending: Turns<QueuedEvent>,
    paused: Pauses,
    /// True if a task runs that publishes the pending events.
    has_task: bool,
}

/// An event that waits to be sent for the first time, or again.
struct QueuedEvent {
    pending: PendingEvent,
    refused: Option<Refused>,
}

/// An event that was not stored at the first attempt.
struct Refused {
    /// The stored event that it repeats.
    repeated: Option<SeriesEntry>,
    retries: usize,
}

/// The times until which no event is sent.
#[derive(Default)]
struct Pauses {
    everywhere: Option<Instant>,
    namespaces: BTreeMap<String, Instant>,
}

/// The next step of the task that publishes.
enum Next {
    Send(Box<QueuedEvent>),
    WaitUntil(Instant),
    End,
}

impl Inject for Publisher {
    fn inject(cx: &Context) -> Self {
        Self(Arc::new(Inner {
            client: cx.client(),
            instance: reporting_instance(),
            outbox: Mutex::default(),
            published: tokio::sync::Mutex::default(),
            running_flushes: AtomicUsize::new(0),
            changed: Notify::new(),
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
        outbox.pending.push(namespace.as_deref(), QueuedEvent { pending, refused: None });
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
        self.0.changed.notify_waiters();
        if let Some(dropped) = dropped {
            self.0.dropped.add(&dropped.pending, "too many events wait to be published");
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
        inner.changed.notify_waiters();
        Self(inner)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.running_flushes.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Pauses {
    /// Removes the pauses that are over.
    fn expire(&mut self, now: Instant) {
        self.everywhere = self.everywhere.filter(|until| *until > now);
        self.namespaces.retain(|_, until| *until > now);
    }

    /// The time at which the next pause is over.
    fn first_end(&self) -> Option<Instant> {
        self.everywhere.or_else(|| self.namespaces.values().min().copied())
    }

    fn admits(&self, namespace: &str) -> bool {
        self.everywhere.is_none() && !self.namespaces.contains_key(namespace)
    }
}

impl Inner {
    async fn publish_all(&self) {
        let mut published = self.published.lock().await;
        loop {
            let changed = self.changed.notified();
            match self.next() {
                Next::Send(event) => self.publish_one(&mut published, *event).await,
                Next::WaitUntil(due) => {
                    let _ = timeout_at(due, changed).await;
                }
                Next::End => return,
            }
        }
    }

    /// Takes the next event, unless all namespaces that have any are paused. If there is none, records that the task ends.
    fn next(&self) -> Next {
        let mut outbox = self.outbox.lock();
        let Outbox { pending, paused, has_task } = &mut *outbox;
        match self.is_flushing() {
            true => *paused = Pauses::default(),
            false => paused.expire(Instant::now()),
        }
        if let Some(event) = pending.pop_where(|namespace| paused.admits(namespace)) {
            return Next::Send(event.into());
        }
        if let Some(due) = paused.first_end().filter(|_| !pending.is_empty()) {
            return Next::WaitUntil(due);
        }
        *has_task = false;
        Next::End
    }

    fn is_flushing(&self) -> bool {
        self.running_flushes.load(Ordering::SeqCst) > 0
    }

    async fn publish_one(&self, Published { series, budgets }: &mut Published, event: QueuedEvent) {
        let QueuedEvent { pending, refused } = event;
        let fingerprint = Fingerprint::of(&pending);
        let Refused { mut repeated, retries } = match refused {
            Some(refused) => refused,
            None => {
                let repeated = series.repeat(&fingerprint);
                if !budgets.spend(&fingerprint.spam_key) {
                    if repeated.is_none() {
                        self.dropped.add(&pending, "too many events about this object");
                    }
                    return; // a repetition is counted with the next event that is sent
                }
                Refused { repeated, retries: 0 }
            }
        };
        let mut stored = self.store(repeated.as_ref(), &pending).await;
        if stored.as_ref().err().and_then(status_code) == Some(404) && mem::take(&mut repeated).is_some() {
            series.remove(&fingerprint); // the stored event expired
            stored = self.store(None, &pending).await;
        }
        match stored {
            Ok(()) if repeated.is_none() => series.insert(fingerprint, pending.namespace(), &pending.name),
            Ok(()) => {}
            Err(error) => self.retry_or_drop(pending, Refused { repeated, retries }, &error),
        }
    }

    /// Puts the event back into the queue if another attempt may succeed. There is none during a flush.
    fn retry_or_drop(
        &self,
        pending: PendingEvent,
        Refused { repeated, retries }: Refused,
        error: &kube::Error,
    ) {
        let asked = retry_after_of(error);
        let is_temporary = asked.is_some() || matches!(status_code(error), None | Some(409));
        match RETRY_PAUSES.get(retries).filter(|_| is_temporary && !self.is_flushing()) {
            Some(&pause) => {
                let until = Instant::now() + pause.max(asked.unwrap_or_default());
                let namespace = pending.regarding.namespace.clone();
                let refused = Some(Refused { repeated, retries: retries + 1 });
                let Outbox { pending: queue, paused, .. } = &mut *self.outbox.lock();
                if status_code(error).is_none() {
                    paused.everywhere = Some(until);
                } else {
                    paused.namespaces.insert(namespace.clone().unwrap_or_default(), until);
                }
                queue.put_back(namespace.as_deref(), QueuedEvent { pending, refused });
            }
            None if is_namespace_terminating(error) => {} // its events are deleted with it
            None => self.dropped.add(&pending, &describe(error)),
        }
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
    is_absence(error) || has_cause_namespace_terminating(error)
}
