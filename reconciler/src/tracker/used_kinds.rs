//! The Kinds that the keys of a controller use, and the informers that are open meanwhile.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::{api::DynamicObject, core::GroupVersionKind, discovery::ApiResource};
use parking_lot::Mutex;
use reknit_apis::{
    Key,
    internal::{HashMap, HashSet},
};
use reknit_injection::{Informer, InformerHandle, internal::on_first_lists};
use tokio::{runtime::Handle, time::Instant};

use super::index::{Index, Tracker};
use crate::{
    Error, Queue, Result,
    inspect::Related,
    queue::{Cause, Source},
};

/// The maximum number of Kinds that the references and templates of a controller's objects can open.
pub(super) const MAX_KINDS: usize = 100;

/// The maximum number of Kinds that the objects of one namespace can use when one of them opens another Kind.
pub(super) const MAX_KINDS_OF_NAMESPACE: usize = 25;

/// The maximum size of the objects of these Kinds, as compact JSON.
const MAX_BYTES: usize = 256 << 20;

/// The time after which a Kind that was closed because of the size is opened again.
pub(super) const CLOSED_FOR: Duration = Duration::from_secs(600);

/// The Kinds found at run time that the keys of one controller use.
///
/// The Kinds that the code does not name are limited by number and by size, since the users who write references and
/// templates choose them.
#[derive(Clone, Default)]
pub(crate) struct UsedKinds(Arc<Mutex<HashMap<ApiResource, UsedKind>>>);

/// The reads of a Kind, and its informer while there are any.
#[derive(Default)]
struct UsedKind {
    tracker: Tracker,
    informer: Option<Informer<DynamicObject>>,
    /// True if the code names the Kind, so that it is not limited.
    is_named: bool,
    /// The time until which the Kind stays closed, because the objects were too large.
    closed_until: Option<Instant>,
    /// The size of its objects when it was closed for that reason.
    size_at_close: usize,
    /// The informer to which the handler was added. It outlives `informer` if other code of the process keeps it, and
    /// must then not get a second handler.
    with_handler: Option<Weak<dyn InformerHandle>>,
    /// True once a pass reads the objects of that informer. Until then the handler ignores events: the end of the first
    /// list enqueues every key that has recorded a read.
    is_read: Arc<AtomicBool>,
}

impl UsedKind {
    /// Keeps the informer open, and adds a handler to it unless it has one.
    fn keep_open(&mut self, informer: &Informer<DynamicObject>, queue: &Queue, used: &UsedKinds) {
        if self.informer.as_ref().is_some_and(|open| open.is_same_as(informer)) {
            return;
        }
        let handle = informer.handle();
        let with_handler = self.with_handler.as_ref().and_then(Weak::upgrade);
        if with_handler.is_none_or(|informer| !Arc::ptr_eq(&informer, &handle)) {
            self.with_handler = Some(Arc::downgrade(&handle));
            self.is_read = Arc::default();
            self.enqueue_at_first_lists(informer, queue);
            let source = Source::new(Source::TRACKED, informer);
            let (tracker, is_read, queue) = (self.tracker.clone(), self.is_read.clone(), queue.clone());
            let used = Arc::downgrade(&used.0);
            informer.on_key_event(move |event| {
                if is_read.load(Ordering::Acquire) {
                    tracker.enqueue_observers(event, &source, &queue);
                }
                if let Some(used) = used.upgrade() {
                    UsedKinds(used).close_excess(MAX_BYTES, &queue);
                }
            });
        }
        self.informer = Some(informer.clone());
    }

    /// Enqueues the observers when the first list succeeds or fails, unless it has succeeded.
    fn enqueue_at_first_lists(&self, informer: &Informer<DynamicObject>, queue: &Queue) {
        let Ok(runtime) = Handle::try_current() else { return };
        if informer.handle().is_synced() {
            return;
        }
        let (tracker, queue, cause) = (self.tracker.clone(), queue.clone(), Cause::kind_of(informer));
        let enqueue_all = move || {
            let observers = tracker.lock().all_observers();
            observers.into_iter().for_each(|observer| queue.add_for(observer, cause.clone()));
        };
        drop(runtime.spawn(on_first_lists(informer, enqueue_all)));
    }

    /// The informer, if the code does not name the Kind.
    fn limited_informer(&self) -> Option<&Informer<DynamicObject>> {
        self.informer.as_ref().filter(|_| !self.is_named)
    }

    /// The size of the objects in bytes. Until their list has ended, at least the size at which the Kind was closed: a
    /// Kind that is opened again does not close one that is smaller.
    fn size(&self) -> usize {
        let size_of = |informer: &Informer<DynamicObject>| match informer.handle().is_synced() {
            true => informer.bytes(),
            false => informer.bytes().max(self.size_at_close),
        };
        self.informer.as_ref().map_or(0, size_of)
    }

    /// Returns true if nothing depends on the entry of the Kind.
    fn is_unused(&self) -> bool {
        let has_handler = self.with_handler.as_ref().is_some_and(|informer| informer.strong_count() > 0);
        let is_closed = self.closed_until.is_some_and(|until| Instant::now() < until);
        !has_handler && !is_closed && self.tracker.lock().is_empty()
    }
}

impl UsedKinds {
    /// Records a read of a Kind and keeps its informer open. Returns its tracker, and what to set once its objects are read.
    pub(super) fn record(
        &self,
        resource: &ApiResource,
        informer: &Informer<DynamicObject>,
        is_named: bool,
        queue: &Queue,
        read: impl FnOnce(&mut Index),
    ) -> (Tracker, Arc<AtomicBool>) {
        let mut used = self.0.lock();
        let kind = used.entry(resource.clone()).or_default();
        read(&mut kind.tracker.lock());
        kind.is_named |= is_named;
        kind.keep_open(informer, queue, self);
        (kind.tracker.clone(), kind.is_read.clone())
    }

    pub(super) fn open_informers(&self) -> Vec<Informer<DynamicObject>> {
        self.0.lock().values().filter_map(|used| used.informer.clone()).collect()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(super) fn for_each_index(&self, act: impl Fn(&mut Index)) {
        self.0.lock().values().for_each(|used| act(&mut used.tracker.lock()));
    }

    /// The objects that the latest passes of the observer have read.
    pub(crate) fn reads_of(&self, observer: &Key) -> Vec<Related> {
        let open = |used: &UsedKind| Some((used.tracker.clone(), used.informer.clone()?));
        let open: Vec<_> = self.0.lock().values().filter_map(open).collect();
        open.iter().flat_map(|(tracker, informer)| tracker.reads_of(observer, informer)).collect()
    }

    /// Closes the informers of this Kind, and returns the keys that use it.
    pub(super) fn close(&self, kind: &GroupVersionKind) -> HashSet<Key> {
        let is_of_kind = |resource: &ApiResource| {
            (&resource.group, &resource.version, &resource.kind) == (&kind.group, &kind.version, &kind.kind)
        };
        let (mut closed, mut observers) = (Vec::new(), HashSet::default());
        for (_, used) in self.0.lock().iter_mut().filter(|(resource, _)| is_of_kind(resource)) {
            closed.extend(used.informer.take());
            observers.extend(used.tracker.lock().all_observers());
        }
        observers // `closed` is dropped without the lock, as in `close_unused`
    }

    /// Closes the informers of Kinds that no key uses any more, and drops their entries.
    pub(super) fn close_unused(&self) {
        let mut used = self.0.lock();
        let unused = used.values_mut().filter(|kind| kind.tracker.lock().is_empty());
        let closed: Vec<_> = unused.filter_map(|kind| kind.informer.take()).collect();
        if !closed.is_empty() {
            drop(used);
            drop(closed); // without the lock: an informer that stops drops its handlers
            used = self.0.lock();
        }
        used.retain(|_, kind| !kind.is_unused());
    }

    /// Fails if the observer may not open this Kind.
    pub(super) fn check_room(&self, resource: &ApiResource, observer: &Key) -> Result<()> {
        let ApiResource { api_version, kind, .. } = resource;
        let used = self.0.lock();
        let entry = used.get(resource);
        if entry.is_some_and(|kind| kind.informer.is_some()) {
            return Ok(());
        }
        if entry.and_then(|kind| kind.closed_until).is_some_and(|until| Instant::now() < until) {
            let message = format!(
                "{kind} of {api_version} is not read: the objects of the Kinds that references or templates have opened \
                 take more than {} MiB, and those of this Kind took the most; it is tried again after ten minutes. Remove \
                 some of them, or name the Kind in the `Kinds` of the controller",
                MAX_BYTES >> 20
            );
            return Err(Error::from(message).reason("KindsTooLarge"));
        }
        let open = used.values().filter(|kind| kind.limited_informer().is_some());
        let of_namespace = observer.namespace.as_deref().map_or(0, |namespace| {
            open.clone().filter(|kind| kind.tracker.lock().has_observers_in(namespace)).count()
        });
        let (users, limit) = match (open.count(), of_namespace) {
            (MAX_KINDS.., _) => ("the objects of the controller", MAX_KINDS),
            (_, MAX_KINDS_OF_NAMESPACE..) => ("the objects of this namespace", MAX_KINDS_OF_NAMESPACE),
            _ => return Ok(()),
        };
        let message = format!(
            "{kind} of {api_version} is not read: the references and templates in {users} use {limit} other Kinds, which is \
             the limit. Name fewer Kinds, or name this one in the `Kinds` of the controller"
        );
        Err(Error::from(message).reason("TooManyKinds"))
    }

    /// If the objects of the limited Kinds are larger than this, closes the Kind whose objects take the most, and enqueues
    /// the keys that use it. So a Kind with less than an equal share stays open, whatever the objects of others take.
    pub(super) fn close_excess(&self, max_bytes: usize, queue: &Queue) {
        // A handler calls this, so it must not wait for a pass that holds the lock and adds a handler.
        let Some(mut used) = self.0.try_lock() else { return };
        let size: usize = used.values().filter_map(UsedKind::limited_informer).map(Informer::bytes).sum();
        if size <= max_bytes {
            return;
        }
        let open = used.values_mut().filter(|kind| kind.limited_informer().is_some());
        let Some(largest) = open.max_by_key(|kind| kind.size()) else { return };
        (largest.closed_until, largest.size_at_close) = (Some(Instant::now() + CLOSED_FOR), largest.size());
        let (closed, observers) = (largest.informer.take(), largest.tracker.lock().all_observers());
        drop(used);
        let Some(informer) = closed else { return };
        tracing::warn!(
            informer = informer.name(),
            size,
            limit = max_bytes,
            "the objects of a Kind are not read: they are too large together with those of other Kinds"
        );
        let cause = Cause::kind_of(&informer);
        observers.into_iter().for_each(|observer| queue.add_for(observer, cause.clone()));
    }
}
