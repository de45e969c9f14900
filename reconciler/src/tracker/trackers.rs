//! The trackers of one controller, and the informers that it opened at run time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Weak},
};

use kube::{
    Resource,
    api::DynamicObject,
    core::{GroupVersionKind, Selector},
};
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{Cached, Informer, InformerHandle, KeyEvent};

use super::index::Index;
use crate::Queue;

/// The reads of one Kind by one controller.
#[derive(Clone, Default)]
pub(crate) struct Tracker(pub(super) Arc<Mutex<Index>>);

impl Tracker {
    /// Enqueues the observers of each object of this informer that changes.
    pub(crate) fn enqueue_observers_on_change<T: Cached>(&self, informer: &Informer<T>, queue: Queue) {
        let tracker = self.clone();
        informer.on_key_event(move |event| {
            for observer in tracker.observers(event) {
                queue.add(Key::from(&*observer));
            }
        });
    }

    /// The observers of the object of this event, by name and by its labels before and after the change.
    pub(super) fn observers(&self, event: &KeyEvent<'_>) -> HashSet<Arc<str>> {
        let key = event.key();
        let has_selectors = self.0.lock().has_selectors();
        let labels: Vec<_> = if has_selectors { event.labels().collect() } else { Vec::new() };
        let (mut observers, index) = (HashSet::new(), self.0.lock());
        index.observers_by_name(key, &mut observers);
        for labels in &labels {
            index.observers_by_labels(key.namespace.as_deref(), labels, &mut observers);
        }
        observers
    }

    /// The keys of the observers of this object, by its name and by its labels, in order.
    pub(super) fn observers_of<T: Resource>(&self, object: &T) -> Vec<Key> {
        let (mut observers, meta) = (HashSet::new(), object.meta());
        let index = self.0.lock();
        index.observers_by_name(&Key::of(object), &mut observers);
        let labels = meta.labels.as_ref().unwrap_or(const { &BTreeMap::new() });
        index.observers_by_labels(meta.namespace.as_deref(), labels, &mut observers);
        let mut keys: Vec<_> = observers.iter().map(|observer| Key::from(&**observer)).collect();
        keys.sort();
        keys
    }

    pub(crate) fn read(&self, observer: &Key, target: &Key) {
        self.0.lock().read(observer, target);
    }

    /// Records that the observer uses the Kind, whatever its objects. This alone never enqueues the observer.
    pub(crate) fn use_kind(&self, observer: &Key) {
        self.0.lock().use_kind(observer);
    }

    pub(super) fn read_matching(&self, observer: &Key, namespace: Option<&str>, selector: &Selector) {
        self.0.lock().read_matching(observer, namespace, selector);
    }

    pub(super) fn forget(&self, observer: &Key) {
        self.0.lock().forget(observer);
    }
}

/// All trackers of one controller.
#[derive(Clone, Default)]
pub(crate) struct Trackers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// The trackers of Kinds that are known when the controller is built.
    fixed: Mutex<Vec<Tracker>>,
    /// The trackers of Kinds that references name at run time.
    dynamic: Mutex<HashMap<GroupVersionKind, DynamicTracker>>,
}

/// The tracker of a Kind that references name, and its informer while any observer reads that Kind.
#[derive(Default)]
struct DynamicTracker {
    tracker: Tracker,
    informer: Option<Informer<DynamicObject>>,
    /// The informer that has a handler for the tracker. If other code of the process keeps it, it still runs after
    /// `informer` is closed.
    with_handler: Option<Weak<dyn InformerHandle>>,
}

impl DynamicTracker {
    /// Keeps the informer open, and adds a handler to it unless it has one.
    fn open(&mut self, informer: &Informer<DynamicObject>, queue: &Queue) {
        if self.informer.is_some() {
            return;
        }
        let handle = informer.handle();
        let with_handler = self.with_handler.as_ref().and_then(Weak::upgrade);
        if with_handler.is_none_or(|informer| !Arc::ptr_eq(&informer, &handle)) {
            self.with_handler = Some(Arc::downgrade(&handle));
            self.tracker.enqueue_observers_on_change(informer, queue.clone());
        }
        self.informer = Some(informer.clone());
    }
}

impl Trackers {
    /// Adds the tracker of a Kind that is known when the controller is built.
    pub(crate) fn add(&self) -> Tracker {
        let tracker = Tracker::default();
        self.0.fixed.lock().push(tracker.clone());
        tracker
    }

    /// Records a read of a Kind that is known only at run time, and returns its tracker. The informer stays open while
    /// the read is tracked.
    pub(super) fn read_dynamic(
        &self,
        kind: GroupVersionKind,
        informer: &Informer<DynamicObject>,
        queue: &Queue,
        read: impl FnOnce(&Tracker),
    ) -> Tracker {
        let mut dynamic = self.0.dynamic.lock();
        let kind_tracker = dynamic.entry(kind).or_default();
        read(&kind_tracker.tracker);
        kind_tracker.open(informer, queue);
        kind_tracker.tracker.clone()
    }

    /// Starts a pass of this key.
    pub(crate) fn begin_pass(&self, key: &Key) {
        self.for_each_index(|index| index.begin_pass(key));
    }

    /// Ends a successful pass: reads that it did not repeat are dropped. After a failed pass all reads are kept, since
    /// the key may be waiting for any of them.
    pub(crate) fn retain_latest(&self, key: &Key) {
        self.for_each_index(|index| index.retain_latest(key));
        self.close_unused();
    }

    /// Drops all reads of this key.
    pub(crate) fn forget(&self, key: &Key) {
        self.for_each_index(|index| index.forget(key));
        self.close_unused();
    }

    /// Drops this key's reads of Kinds that are known only at run time.
    pub(super) fn forget_dynamic(&self, key: &Key) {
        self.0.dynamic.lock().values().for_each(|dynamic| dynamic.tracker.forget(key));
        self.close_unused();
    }

    /// The keys of the objects that have read this object of a Kind that is known only at run time.
    pub(super) fn dynamic_observers(&self, kind: &GroupVersionKind, object: &DynamicObject) -> Vec<Key> {
        let tracker = self.0.dynamic.lock().get(kind).map(|dynamic| dynamic.tracker.clone());
        tracker.map(|tracker| tracker.observers_of(object)).unwrap_or_default()
    }

    /// The open informers of Kinds that references name.
    pub(super) fn dynamic_informers(&self) -> Vec<Informer<DynamicObject>> {
        self.0.dynamic.lock().values().filter_map(|dynamic| dynamic.informer.clone()).collect()
    }

    fn for_each_index(&self, act: impl Fn(&mut Index)) {
        self.0.fixed.lock().iter().for_each(|tracker| act(&mut tracker.0.lock()));
        self.0.dynamic.lock().values().for_each(|dynamic| act(&mut dynamic.tracker.0.lock()));
    }

    /// Closes the informers of Kinds that no observer reads any more.
    fn close_unused(&self) {
        let mut dynamic = self.0.dynamic.lock();
        let unused = dynamic.values_mut().filter(|dynamic| dynamic.tracker.0.lock().is_empty());
        let closed: Vec<_> = unused.filter_map(|dynamic| dynamic.informer.take()).collect();
        drop(dynamic);
        drop(closed); // without the lock: an informer that stops drops its handlers
    }
}
