//! Values that a controller keeps in memory for each key between passes.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use reknit_apis::{Key, internal::HashMap};

/// A map from key to value that outlives a pass, for example for a background task, a connection or a cached response.
/// [`Builder::per_key`](crate::Builder::per_key) creates it. Clones share the same map.
///
/// The framework drops a value when:
///
/// - its object was deleted: at the start of the key's next pass, even if a new object has the same name by then,
/// - its object leaves the controller's class, or
/// - this process stops leading the key.
///
/// A background task that is aborted on drop, such as one in a `JoinSet`, ends with its value. Values are lost when the
/// process exits; store durable data in the object.
///
/// ```
/// use std::{sync::Arc, time::Duration};
///
/// use k8s_openapi::api::core::v1::Namespace;
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Key, Outcome, PerKey, Queue, ReconcileKind, Result};
/// use tokio::task::JoinSet;
///
/// /// Starts a slow lookup once for each namespace.
/// struct Slow {
///     lookups: PerKey<Arc<JoinSet<()>>>, // aborts its tasks when dropped
///     queue: Queue,
/// }
///
/// impl ReconcileKind for Slow {
///     type Kind = Namespace;
///
///     async fn reconcile_kind(&self, namespace: &Namespace, _status: &mut ()) -> Result<Outcome> {
///         let key = Key::of(namespace);
///         if self.lookups.get(&key).is_none() {
///             let mut lookup = JoinSet::new();
///             let (queue, same_key) = (self.queue.clone(), key.clone());
///             lookup.spawn(async move {
///                 tokio::time::sleep(Duration::from_secs(60)).await; // the slow part
///                 queue.add(same_key); // the next pass uses the result
///             });
///             self.lookups.insert(key, Arc::new(lookup));
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
#[derive(derive_more::Debug)]
#[debug("PerKey {{ len: {}, .. }}", self.0.lock().len())]
pub struct PerKey<T>(Arc<Mutex<HashMap<Key, T>>>);

impl<T> Clone for PerKey<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone> PerKey<T> {
    /// Returns a clone of the key's value, if there is one.
    pub fn get(&self, key: &Key) -> Option<T> {
        self.0.lock().get(key).cloned()
    }
}

impl<T> PerKey<T> {
    /// Sets the key's value and returns the previous one, if any.
    pub fn insert(&self, key: Key, value: T) -> Option<T> {
        self.0.lock().insert(key, value)
    }

    /// Removes the key's value and returns it, if there is one.
    pub fn remove(&self, key: &Key) -> Option<T> {
        self.0.lock().remove(key)
    }
}

/// All [`PerKey`] maps of one controller, with their types erased.
#[derive(Clone, Default)]
pub(crate) struct PerKeyStores(Arc<Shared>);

#[derive(Default)]
struct Shared {
    stores: Mutex<Vec<Arc<dyn Store>>>,
    /// Keys whose object was deleted since their last pass. The next pass drops their values before it reads the
    /// object, which may be a new object with the same name.
    deleted: Mutex<BTreeSet<Key>>,
}

trait Store: Send + Sync {
    fn drop_where(&self, condition: &dyn Fn(&Key) -> bool);
    fn drop_value_of(&self, key: &Key);
}

// Values are dropped after the lock is released, because their `Drop` may take other locks.
impl<T: Send> Store for Mutex<HashMap<Key, T>> {
    fn drop_where(&self, condition: &dyn Fn(&Key) -> bool) {
        let dropped: Vec<_> = self.lock().extract_if(|key, _| condition(key)).collect();
        drop(dropped);
    }

    fn drop_value_of(&self, key: &Key) {
        let dropped = self.lock().remove(key);
        drop(dropped);
    }
}

impl PerKeyStores {
    pub(crate) fn add<T: Send + 'static>(&self) -> PerKey<T> {
        let values = Arc::new(Mutex::new(HashMap::default()));
        self.0.stores.lock().push(values.clone());
        PerKey(values)
    }

    /// Records that the key's object was deleted. Its values are dropped at the start of the next pass, so a running
    /// pass can still use them.
    pub(crate) fn record_deletion(&self, key: impl FnOnce() -> Key) {
        if !self.0.stores.lock().is_empty() {
            self.0.deleted.lock().insert(key());
        }
    }

    /// Starts a pass: drops the values of a deleted object, then reads the current object with `read`. Repeats this if
    /// the object is deleted during the read.
    pub(crate) fn begin_pass<T>(&self, key: &Key, read: impl Fn() -> T) -> T {
        loop {
            if self.is_deleted(key) {
                self.drop_values_of(key);
            }
            let object = read();
            if !self.is_deleted(key) {
                return object;
            }
        }
    }

    fn is_deleted(&self, key: &Key) -> bool {
        self.0.deleted.lock().contains(key)
    }

    /// Drops the values of the key, and the record of a deletion.
    pub(crate) fn drop_values_of(&self, key: &Key) {
        self.0.deleted.lock().remove(key);
        self.for_each_store(|store| store.drop_value_of(key));
    }

    pub(crate) fn drop_where(&self, condition: impl Fn(&Key) -> bool) {
        self.for_each_store(|store| store.drop_where(&condition));
    }

    /// Drops all values and maps. After that, `record_deletion` does nothing. Informers that this controller shared
    /// with others still call it.
    pub(crate) fn close(&self) {
        self.drop_where(|_| true);
        self.0.stores.lock().clear();
        self.0.deleted.lock().clear();
    }

    fn for_each_store(&self, act: impl Fn(&dyn Store)) {
        let stores = self.0.stores.lock().clone();
        stores.iter().for_each(|store| act(&**store));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn stores_with_one_value() -> (PerKeyStores, PerKey<u8>, Key) {
        let (stores, key) = (PerKeyStores::default(), Key::new("default", "x"));
        let values = stores.add();
        values.insert(key.clone(), 1);
        (stores, values, key)
    }

    #[test]
    fn a_pass_does_not_see_the_value_of_an_object_deleted_while_it_reads() {
        let (stores, values, key) = stores_with_one_value();
        assert_eq!(stores.begin_pass(&key, || values.get(&key)), Some(1));
        let reads = Cell::new(0);
        stores.begin_pass(&key, || {
            if reads.replace(reads.get() + 1) == 0 {
                stores.record_deletion(|| key.clone());
            }
        });
        assert_eq!((values.get(&key), reads.get()), (None, 2));
    }

    #[test]
    fn closed_stores_record_no_deletions() {
        let (stores, values, key) = stores_with_one_value();
        stores.record_deletion(|| key.clone());
        stores.close();
        stores.record_deletion(|| key.clone());
        assert_eq!((values.get(&key), stores.0.deleted.lock().len()), (None, 0));
    }
}
