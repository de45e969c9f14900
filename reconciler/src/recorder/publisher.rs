//! Publishes what was recorded: a bounded queue, emptied by one task at a time.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event as Stored},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use prometheus::Counter;
use reknit_apis::dns_subdomain;
use reknit_injection::{Context, Inject};
use serde_json::json;
use tokio::{sync::Notify, time::Instant};

use super::{
    budget::Budgets,
    series::{Fingerprint, Seen, Series},
};
use crate::{Event, error::said, metrics::Metrics};

const CAPACITY: usize = 1000;
/// What the events API allows.
const LONGEST_NOTE: usize = 1024;
const LONGEST_WORD: usize = 128;
const LONGEST_CONTROLLER: usize = 63;
/// How long to wait before another try, where the API server was not reached.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// How often the log says that events are dropped.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// An event that is to be published.
pub(super) struct Waiting {
    pub(super) regarding: ObjectReference,
    pub(super) event: Event,
    pub(super) controller: Arc<str>,
    /// What it is stored as, however often that is tried.
    name: String,
    at: Timestamp,
}

impl Waiting {
    pub(super) fn new(regarding: ObjectReference, event: Event, controller: Arc<str>) -> Self {
        let name = event_name(regarding.name.as_deref().unwrap_or_default());
        Self { regarding, event, controller, name, at: Timestamp::now() }
    }

    /// Events are namespaced, also those about cluster-scoped objects.
    fn namespace(&self) -> &str {
        self.regarding.namespace.as_deref().unwrap_or("default")
    }

    fn reason(&self) -> &str {
        cut(&self.event.reason, LONGEST_WORD)
    }

    fn note(&self) -> &str {
        cut(&self.event.message, LONGEST_NOTE)
    }
}

/// The one publisher of a process.
#[derive(Clone)]
pub(super) struct Publisher(Arc<Inner>);

struct Inner {
    client: Client,
    /// Which process it was: the pod, or the host.
    instance: String,
    outbox: Mutex<Outbox>,
    /// Held by whoever publishes.
    published: tokio::sync::Mutex<Published>,
    flushes: AtomicUsize,
    hurry: Notify,
    dropped: Counter,
    untold: Arc<Mutex<Untold>>,
}

/// What was published lately.
#[derive(Default)]
struct Published {
    series: Series,
    budgets: Budgets,
}

/// The events that were dropped since the log last said so, which it does once a minute.
#[derive(Default)]
struct Untold {
    count: u64,
    told: Option<Instant>,
}

impl Untold {
    /// How many to tell of, if it is time.
    fn one_more(&mut self) -> Option<u64> {
        self.count += 1;
        if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return None;
        }
        self.told = Some(Instant::now());
        Some(std::mem::take(&mut self.count))
    }

    /// How many to tell of, now that it is time.
    fn rest(&mut self) -> Option<u64> {
        self.told = Some(Instant::now());
        Some(std::mem::take(&mut self.count)).filter(|count| *count > 0)
    }

    /// When to tell of those of whom this was the first.
    fn due(&self) -> Option<Instant> {
        self.told.filter(|_| self.count == 1).map(|told| told + TELL_EVERY)
    }
}

#[derive(Default)]
struct Outbox {
    waiting: VecDeque<Waiting>,
    /// Whether a task is about to empty it.
    attended: bool,
}

impl Inject for Publisher {
    fn inject(cx: &Context) -> Self {
        Self(Arc::new(Inner {
            client: cx.client(),
            instance: cut(&instance(), LONGEST_WORD).to_owned(),
            outbox: Mutex::default(),
            published: tokio::sync::Mutex::default(),
            flushes: AtomicUsize::new(0),
            hurry: Notify::new(),
            dropped: cx.get::<Metrics>().events_dropped(),
            untold: Arc::default(),
        }))
    }
}

impl Publisher {
    /// Puts the event into the outbox, and sees to it that somebody empties it.
    pub(super) fn publish(&self, waiting: Waiting) {
        let attended = {
            let mut outbox = self.0.outbox.lock();
            if outbox.waiting.len() >= CAPACITY {
                drop(outbox);
                return self.0.drop_event(&waiting, "too many events wait to be published");
            }
            outbox.waiting.push_back(waiting);
            std::mem::replace(&mut outbox.attended, true)
        };
        if !attended {
            self.attend();
        }
    }

    /// Publishes in the background; where there is no runtime yet, with the next event or flush.
    fn attend(&self) {
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                let publisher = self.clone();
                drop(runtime.spawn(async move { publisher.0.empty_outbox().await }));
            }
            Err(_) => self.0.outbox.lock().attended = false,
        }
    }

    pub(super) async fn flush(&self) {
        let _flushing = Flushing::begin(&self.0);
        self.0.empty_outbox().await;
    }
}

/// While there is one of these, no event is tried twice.
struct Flushing<'a>(&'a Inner);

impl<'a> Flushing<'a> {
    fn begin(inner: &'a Inner) -> Self {
        inner.flushes.fetch_add(1, Ordering::SeqCst);
        inner.hurry.notify_waiters();
        Self(inner)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.flushes.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Inner {
    async fn empty_outbox(&self) {
        let mut published = self.published.lock().await;
        while let Some(waiting) = self.next() {
            self.store_patiently(&mut published, &waiting).await;
        }
    }

    fn next(&self) -> Option<Waiting> {
        let mut outbox = self.outbox.lock();
        let next = outbox.waiting.pop_front();
        if next.is_none() {
            outbox.attended = false;
        }
        next
    }

    async fn store_patiently(&self, Published { series, budgets }: &mut Published, waiting: &Waiting) {
        let fingerprint = Fingerprint::of(waiting, waiting.reason(), waiting.note());
        let mut seen = series.again(&fingerprint);
        if !budgets.spend(&fingerprint.source) {
            match seen {
                Some(_) => return, // the next one that is sent tells how many there were
                None => return self.drop_event(waiting, "there are too many about this object"),
            }
        }
        let mut pauses = PAUSES.iter();
        while let Err(error) = self.store(seen.as_ref(), waiting).await {
            if seen.is_some() && is(&error, 404) {
                seen = None; // it expired
                series.lost(&fingerprint);
                continue;
            }
            let unreached = !matches!(error, kube::Error::Api(_));
            match pauses.next().filter(|_| unreached) {
                Some(pause) if self.paused(*pause).await => {}
                _ if namespace_goes(&error) => return, // its events would go with it
                _ => return self.drop_event(waiting, &said(&error)),
            }
        }
        if seen.is_none() {
            series.stored(fingerprint, waiting.namespace().to_owned(), waiting.name.clone());
        }
    }

    /// Waits; false where somebody flushes.
    async fn paused(&self, pause: Duration) -> bool {
        let hurried = self.hurry.notified();
        if self.flushes.load(Ordering::SeqCst) > 0 {
            return false;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = hurried => false,
        }
    }

    /// Stores the event, or counts it on the one that was seen before.
    async fn store(&self, seen: Option<&Seen>, waiting: &Waiting) -> Result<(), kube::Error> {
        if let Some(seen) = seen {
            let body =
                json!({ "series": { "count": seen.count, "lastObservedTime": MicroTime(waiting.at) } });
            let events = self.events(&seen.namespace);
            return events.patch(&seen.name, &PatchParams::default(), &Patch::Merge(body)).await.map(drop);
        }
        match self.events(waiting.namespace()).create(&PostParams::default(), &self.to_store(waiting)).await {
            Err(error) if !is(&error, 409) => Err(error),
            _ => Ok(()), // 409: an earlier try arrived after all
        }
    }

    fn to_store(&self, waiting: &Waiting) -> Stored {
        let reason = waiting.reason();
        Stored {
            metadata: ObjectMeta {
                name: Some(waiting.name.clone()),
                namespace: Some(waiting.namespace().into()),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".into()),
            event_time: Some(MicroTime(waiting.at)),
            note: Some(waiting.note().into()),
            reason: Some(if reason.is_empty() { "Unspecified" } else { reason }.into()),
            regarding: Some(waiting.regarding.clone()),
            reporting_controller: Some(waiting.controller.to_string()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(waiting.event.type_name().into()),
            ..Stored::default()
        }
    }

    fn events(&self, namespace: &str) -> Api<Stored> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn drop_event(&self, waiting: &Waiting, why: &str) {
        self.dropped.inc();
        let (dropped, due) = {
            let mut untold = self.untold.lock();
            (untold.one_more(), untold.due())
        };
        let Some(dropped) = dropped else { return due.into_iter().for_each(|due| self.tell_at(due)) };
        tracing::warn!(
            dropped,
            kind = waiting.regarding.kind,
            namespace = waiting.regarding.namespace,
            name = waiting.regarding.name,
            reason = waiting.event.reason,
            why,
            "events were dropped: this is the last of them"
        );
    }

    /// Tells of those that are dropped until then, unless that has been done by then.
    fn tell_at(&self, due: Instant) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let untold = self.untold.clone();
        drop(runtime.spawn(async move {
            tokio::time::sleep_until(due).await;
            let dropped = untold.lock().rest();
            if let Some(dropped) = dropped {
                tracing::warn!(dropped, "more events were dropped");
            }
        }));
    }
}

/// The object's name and something that nobody else chooses, as client-go names events. A retry uses it again.
fn event_name(about: &str) -> String {
    let about =
        if dns_subdomain(about).is_empty() { cut(about, 230).trim_end_matches(['.', '-']) } else { "event" };
    format!("{about}.{:016x}", rand::random::<u64>())
}

/// The pod, where it says its name, or the host.
fn instance() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    pod.unwrap_or_else(|| gethostname::gethostname().to_string_lossy().into_owned())
}

/// As much of a controller's name as may stand in an event: a part of a label's key.
pub(super) fn controller(name: &str) -> &str {
    cut(name, LONGEST_CONTROLLER).trim_end_matches(['-', '.', '_'])
}

/// As much of the text as fits into so many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Whether the namespace takes nothing new any more, or is gone.
fn namespace_goes(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 404 || causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn that_events_are_dropped_is_said_once_a_minute_with_their_number() {
        let mut untold = Untold::default();
        assert_eq!([untold.one_more(), untold.one_more(), untold.one_more()], [Some(1), None, None]);
        tokio::time::advance(TELL_EVERY).await;
        assert_eq!([untold.one_more(), untold.one_more()], [Some(3), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_that_are_dropped_are_told_too_where_none_comes_later() {
        let mut untold = Untold::default();
        assert_eq!((untold.one_more(), untold.due()), (Some(1), None));
        assert_eq!((untold.one_more(), untold.due()), (None, Some(Instant::now() + TELL_EVERY)));
        assert_eq!((untold.one_more(), untold.due()), (None, None));
        tokio::time::advance(TELL_EVERY).await;
        assert_eq!([untold.rest(), untold.rest()], [Some(2), None]);
    }
}
