//! Remembers which key has read which object, and wakes it when that object changes.
//!
//! Knative's tracker holds a read for three resync periods, so that what nobody forgot expires. Here nothing needs
//! to expire: a read ends with the pass after which it was not repeated, or with its observer.

mod any;
mod index;
mod owned;
#[cfg(test)]
mod tests;
mod tracked;

use std::{collections::HashSet, sync::Arc};

use kube::core::Selector;
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{Cached, Informer, KeyEvent};

use self::index::Index;
pub(crate) use self::owned::{controller_of, owner_key};
pub use self::{any::TrackedAny, owned::Owned, tracked::Tracked};
use crate::Queue;

/// The reads of one Kind by one controller.
#[derive(Clone, Default)]
pub(crate) struct Tracker(Arc<Mutex<Index>>);

impl Tracker {
    /// Wakes, in that queue, whoever read an object that changes.
    pub(crate) fn wake<T: Cached>(&self, informer: &Informer<T>, queue: Queue) {
        let tracker = self.clone();
        informer.on_key_event(move |event| {
            for observer in tracker.observers(event) {
                queue.add(Key::from(&*observer));
            }
        });
    }

    fn observers(&self, event: &KeyEvent<'_>) -> HashSet<Arc<str>> {
        let key = event.key();
        let labels: Vec<_> = if self.0.lock().selects() { event.labels().collect() } else { Vec::new() };
        let (mut observers, index) = (HashSet::new(), self.0.lock());
        index.observers_by_name(key, &mut observers);
        for labels in &labels {
            index.observers_by_labels(key.namespace.as_deref(), labels, &mut observers);
        }
        observers
    }

    pub(crate) fn read(&self, observer: &Key, target: &Key) {
        self.0.lock().read(observer, target);
    }

    fn read_matching(&self, observer: &Key, namespace: Option<&str>, selector: &Selector) {
        self.0.lock().read_matching(observer, namespace, selector);
    }

    fn forget(&self, observer: &Key) {
        self.0.lock().forget(observer);
    }
}

/// All trackers of one controller; those for Kinds met at run time join later.
#[derive(Clone, Default)]
pub(crate) struct Trackers(Arc<Mutex<Vec<Tracker>>>);

impl Trackers {
    pub(crate) fn join(&self) -> Tracker {
        let tracker = Tracker::default();
        self.0.lock().push(tracker.clone());
        tracker
    }

    /// A pass of this key begins.
    pub(crate) fn begin(&self, key: &Key) {
        self.each(|index| index.begin(key));
    }

    /// It ended well: what it did not read is tracked no longer. After one that failed, what was read before it
    /// and in it is tracked, since either may be what it waits for.
    pub(crate) fn settle(&self, key: &Key) {
        self.each(|index| index.settle(key));
    }

    /// The key is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.each(|index| index.forget(key));
    }

    fn each(&self, act: impl Fn(&mut Index)) {
        for tracker in &*self.0.lock() {
            act(&mut tracker.0.lock());
        }
    }
}
