//! [`Index`], which finds an informer's objects by a computed value.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
};

use parking_lot::RwLock;
use reknit_apis::{
    Key,
    internal::{HashMap, HashSet},
};

use super::{Cached, Change, Informer, SharedInformer};
use crate::{cache::ChangeHandler, recording::ListScope};

/// An index of an informer's objects by computed values, such as Pods by node.
///
/// The index is updated with the informer, before its handlers are called. If the function that computes the values
/// panics for an object, the panic is logged and the object is left out of the index. An index keeps its informer
/// running, as a clone of the informer does. Do not capture an index in a handler of its informer: the informer would
/// never stop.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::Pod;
/// use reknit_injection::{Context, Index, Informer};
///
/// fn pods_by_node(cx: &Context) -> Index<Pod> {
///     let pods: Informer<Pod> = cx.get();
///     pods.index(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()))
/// }
///
/// fn is_crowded(by_node: &Index<Pod>, node: &str) -> bool {
///     by_node.get(node).count() > 100
/// }
/// ```
#[derive(derive_more::Debug)]
#[debug("Index {{ values: {} }}", self.0.keys.read().len())]
pub struct Index<K: Cached>(Arc<SharedIndex<K>>);

struct SharedIndex<K: Cached> {
    informer: Informer<K>,
    function: IndexFunction<K>,
    keys: Arc<KeysByValue>,
}

impl<K: Cached> Informer<K> {
    /// Creates an index by the values that `values` computes from an object: none, one or several.
    pub fn index<V>(&self, values: impl Fn(&K) -> V + Send + Sync + 'static) -> Index<K>
    where
        V: IntoIterator<Item = String> + 'static,
    {
        let function: IndexFunction<K> = Arc::new(move |object| {
            let values = catch_unwind(AssertUnwindSafe(|| values(object).into_iter().collect()));
            values.unwrap_or_else(|_| {
                tracing::error!(key = %Key::of(object), "an index function panicked, leaving the object out of the index");
                BTreeSet::new()
            })
        });
        let keys = Arc::new(KeysByValue::default());
        self.0.cache.add_index(update_handler(function.clone(), keys.clone()));
        Index(Arc::new(SharedIndex { informer: self.clone(), function, keys }))
    }
}

/// An [`Index`] that does not keep its informer running. Created by [`Index::downgrade`].
#[derive(derive_more::Debug)]
#[debug("WeakIndex {{ values: {} }}", self.keys.read().len())]
pub struct WeakIndex<K: Cached> {
    informer: Weak<SharedInformer<K>>,
    function: IndexFunction<K>,
    keys: Arc<KeysByValue>,
}

impl<K: Cached> WeakIndex<K> {
    /// Returns the index, or `None` if its informer has stopped.
    pub fn upgrade(&self) -> Option<Index<K>> {
        let (informer, function, keys) =
            (Informer(self.informer.upgrade()?), self.function.clone(), self.keys.clone());
        Some(Index(Arc::new(SharedIndex { informer, function, keys })))
    }
}

/// Computes the values of an object.
type IndexFunction<K> = Arc<dyn Fn(&K) -> BTreeSet<String> + Send + Sync>;

/// The keys of the objects by value. The index reads the objects themselves from the cache.
type KeysByValue = RwLock<HashMap<String, HashSet<Key>>>;

impl<K: Cached> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Cached> Index<K> {
    /// Returns the informer whose objects are indexed.
    pub fn informer(&self) -> &Informer<K> {
        &self.0.informer
    }

    /// Returns a weak index, which does not keep the informer running. If you open the same informer repeatedly at run
    /// time, keep a weak index, so that you index the informer only once.
    pub fn downgrade(&self) -> WeakIndex<K> {
        let SharedIndex { informer, function, keys } = &*self.0;
        WeakIndex { informer: Arc::downgrade(&informer.0), function: function.clone(), keys: keys.clone() }
    }

    /// Returns the objects with this value, in no particular order. Each is decoded when the iterator reaches it.
    pub fn get(&self, value: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        let keys = self.0.keys.read().get(value).cloned().unwrap_or_default();
        let (shared, value) = (self.0.clone(), value.to_owned());
        let cache = &shared.informer.0.cache;
        cache.record_list(ListScope::IndexValue(&value), || {
            keys.iter().filter_map(|key| cache.object(key)).collect::<Vec<_>>()
        });
        keys.into_iter().filter_map(move |key| {
            let cache = &shared.informer.0.cache;
            // The object may have changed since the index was read.
            cache.get(&key).filter(|object| (shared.function)(object).contains(&value))
        })
    }
}

/// Returns the handler that updates the index. It calls the index function before it takes the lock.
fn update_handler<K: Cached>(function: IndexFunction<K>, keys: Arc<KeysByValue>) -> ChangeHandler<K> {
    Box::new(move |change| {
        let (removed, added) = match change {
            Change::Added(new) => (BTreeSet::new(), function(new)),
            Change::Deleted { last } => (function(last), BTreeSet::new()),
            Change::Updated { old, new } => (function(old), function(new)),
        };
        if removed == added {
            return;
        }
        let (key, mut keys) = (change.key(), keys.write());
        for value in removed.difference(&added) {
            let Some(keys_of_value) = keys.get_mut(value) else { continue };
            keys_of_value.remove(&key);
            if keys_of_value.is_empty() {
                keys.remove(value);
            }
        }
        for value in added.difference(&removed) {
            keys.entry(value.clone()).or_default().insert(key.clone());
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::discovery::ApiResource;

    use crate::{
        Context, Informer, select,
        testing::{map, server},
    };

    #[tokio::test]
    async fn an_index_keeps_its_informer_running() {
        let (client, mut server) = server();
        let (by_name, informers) = {
            let cx = Context::new("test", client);
            (cx.get::<Informer<ConfigMap>>().index(|map| map.metadata.name.clone()), cx.informers())
        };
        informers.start();
        let _watch = server.sync("10", &[map("a", "5")]).await;
        by_name.0.informer.synced().await;
        assert_eq!(by_name.get("a").count(), 1);
    }

    #[tokio::test]
    async fn a_weak_index_is_the_same_index_until_the_informer_stops() {
        let maps: Informer<ConfigMap> =
            Context::new("test", server().0).informers().get(ApiResource::erase::<ConfigMap>(&()), select());
        let weak = maps.index(|map| map.metadata.name.clone()).downgrade();
        maps.insert(&serde_json::from_value(map("a", "1")).unwrap()).unwrap();
        assert_eq!(weak.upgrade().unwrap().get("a").count(), 1);
        drop(maps);
        assert!(weak.upgrade().is_none());
    }

    #[tokio::test]
    async fn an_object_whose_index_function_panics_is_left_out() {
        let maps: Informer<ConfigMap> = Context::new("test", server().0).get();
        let index = maps.index(|map| {
            assert!(map.metadata.resource_version.as_deref() != Some("2"), "as planned");
            Some("all".to_owned())
        });
        let count = |version| {
            maps.insert(&serde_json::from_value(map("a", version)).unwrap()).unwrap();
            index.get("all").count()
        };
        assert_eq!(["1", "2", "3"].map(count), [1, 0, 1]);
    }

    #[tokio::test]
    async fn a_concurrent_reader_finds_an_object_exactly_once_during_updates() {
        let maps: Informer<ConfigMap> = Context::new("test", server().0).get();
        let index = maps.index(|_| (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
        let insert = |version: usize| {
            maps.insert(&serde_json::from_value(map("a", &version.to_string())).unwrap()).unwrap()
        };
        insert(1);
        let (reader, done) = (index.clone(), AtomicBool::new(false));
        thread::scope(|scope| {
            let counts = scope.spawn(|| {
                let mut counts = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    counts.extend((0..50).map(|n| reader.get(&n.to_string()).count()));
                    counts.sort_unstable();
                    counts.dedup();
                }
                counts
            });
            (2..1000).for_each(insert);
            done.store(true, Ordering::Relaxed);
            let counts = counts.join().unwrap();
            assert!(counts.iter().all(|count| *count == 1), "{counts:?}");
        });
        let newest = index.get("7").next().unwrap();
        assert_eq!(newest.metadata.resource_version.as_deref(), Some("999"), "the newest state is cached");
    }
}
