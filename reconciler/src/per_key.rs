//! What a controller keeps for a key beside its passes.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use parking_lot::Mutex;
use reknit_apis::Key;

/// One value for a key, from pass to pass: a task that runs beside them, a connection, an answer.
///
/// It is dropped when the object is gone (before the first pass of another of its name), when it is none of this controller's
/// class any more, and when this process loses the lead over it; so what its `Drop` ends goes on for no longer. Nothing of it
/// outlives the process: what has to is part of the object. Clones are one. Comes from
/// [`Builder::per_key`](crate::Builder::per_key).
///
/// ```
/// use std::{sync::Arc, time::Duration};
///
/// use k8s_openapi::api::core::v1::Namespace;
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Key, Outcome, PerKey, Queue, ReconcileKind, Result};
/// use tokio::task::JoinSet;
///
/// /// Looks something up that takes long, once for each namespace.
/// struct Slow {
///     lookups: PerKey<Arc<JoinSet<()>>>, // dropped, it ends its tasks
///     queue: Queue,
/// }
///
/// impl ReconcileKind for Slow {
///     type Kind = Namespace;
///
///     async fn reconcile_kind(&self, namespace: &Namespace, _status: &mut ()) -> Result<Outcome> {
///         let key = Key::of(namespace);
///         if self.lookups.get(&key).is_none() {
///             let (mut task, queue, woken) = (JoinSet::new(), self.queue.clone(), key.clone());
///             task.spawn(async move {
///                 tokio::time::sleep(Duration::from_secs(60)).await;
///                 queue.add(woken);
///             });
///             self.lookups.insert(key, Arc::new(task));
///         }
///         Ok(Outcome::done())
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     let mut build = Controller::of::<Namespace>(cx);
///     let (lookups, queue) = (build.per_key(), build.queue());
///     Ok(build.reconciler(Slow { lookups, queue }).build())
/// }
/// ```
pub struct PerKey<T>(Arc<Mutex<HashMap<Key, T>>>);

impl<T> Clone for PerKey<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for PerKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerKey").field("len", &self.0.lock().len()).finish_non_exhaustive()
    }
}

impl<T: Clone> PerKey<T> {
    /// What is kept for the key.
    pub fn get(&self, key: &Key) -> Option<T> {
        self.0.lock().get(key).cloned()
    }
}

impl<T> PerKey<T> {
    /// Keeps this for the key, and answers what was kept before.
    pub fn insert(&self, key: Key, value: T) -> Option<T> {
        self.0.lock().insert(key, value)
    }

    /// Keeps nothing more for the key, and answers what was kept.
    pub fn remove(&self, key: &Key) -> Option<T> {
        self.0.lock().remove(key)
    }
}

/// Everything that one controller keeps.
#[derive(Clone, Default)]
pub(crate) struct PerKeyStores(Arc<Shared>);

#[derive(Default)]
struct Shared {
    all: Mutex<Vec<Arc<dyn Keeps>>>,
    /// Whose object went since their last pass: another may have come in its place.
    gone: Mutex<BTreeSet<Key>>,
}

trait Keeps: Send + Sync {
    fn drop_where(&self, which: &dyn Fn(&Key) -> bool);
    fn drop_of(&self, key: &Key);
}

// What is dropped may lock whatever it likes: no lock is held then.
impl<T: Send> Keeps for Mutex<HashMap<Key, T>> {
    fn drop_where(&self, which: &dyn Fn(&Key) -> bool) {
        let dropped: Vec<_> = self.lock().extract_if(|key, _| which(key)).collect();
        drop(dropped);
    }

    fn drop_of(&self, key: &Key) {
        let dropped = self.lock().remove(key);
        drop(dropped);
    }
}

impl PerKeyStores {
    pub(crate) fn add<T: Send + 'static>(&self) -> PerKey<T> {
        let all = Arc::new(Mutex::new(HashMap::new()));
        self.0.all.lock().push(all.clone());
        PerKey(all)
    }

    /// The object of this key went. What is kept for it is dropped by the pass that this leads to, or that runs, and not
    /// under its hands.
    pub(crate) fn gone(&self, key: impl FnOnce() -> Key) {
        if !self.0.all.lock().is_empty() {
            self.0.gone.lock().insert(key());
        }
    }

    /// What a pass begins with, as it is read: what was kept for an object before it is dropped, also where that goes
    /// meanwhile.
    pub(crate) fn begin<T>(&self, key: &Key, read: impl Fn() -> T) -> T {
        loop {
            if self.is_gone(key) {
                self.drop_of(key);
            }
            let object = read();
            if !self.is_gone(key) {
                return object;
            }
        }
    }

    fn is_gone(&self, key: &Key) -> bool {
        self.0.gone.lock().contains(key)
    }

    pub(crate) fn drop_of(&self, key: &Key) {
        self.0.gone.lock().remove(key);
        self.each(|keeps| keeps.drop_of(key));
    }

    pub(crate) fn drop_where(&self, which: impl Fn(&Key) -> bool) {
        self.each(|keeps| keeps.drop_where(&which));
    }

    /// Nothing is kept, and nobody is told who went: its handlers live as long as the informers of others.
    pub(crate) fn close(&self) {
        self.drop_where(|_| true);
        self.0.all.lock().clear();
        self.0.gone.lock().clear();
    }

    fn each(&self, act: impl Fn(&dyn Keeps)) {
        let all = self.0.all.lock().clone();
        all.iter().for_each(|keeps| act(&**keeps));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn keeping_one() -> (PerKeyStores, PerKey<u8>, Key) {
        let (kept, key) = (PerKeyStores::default(), Key::new("default", "x"));
        let values = kept.add();
        values.insert(key.clone(), 1);
        (kept, values, key)
    }

    #[test]
    fn what_takes_the_place_of_another_while_it_is_read_finds_nothing() {
        let (kept, values, key) = keeping_one();
        assert_eq!(kept.begin(&key, || values.get(&key)), Some(1));
        let reads = Cell::new(0);
        kept.begin(&key, || {
            if reads.replace(reads.get() + 1) == 0 {
                kept.gone(|| key.clone());
            }
        });
        assert_eq!((values.get(&key), reads.get()), (None, 2));
    }

    #[test]
    fn who_keeps_nothing_any_more_does_not_count_who_went() {
        let (kept, values, key) = keeping_one();
        kept.gone(|| key.clone());
        kept.close();
        kept.gone(|| key.clone());
        assert_eq!((values.get(&key), kept.0.gone.lock().len()), (None, 0));
    }
}
