//! Finds the objects of an informer by a value computed from them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use parking_lot::RwLock;
use reknit_apis::Key;

use super::{Cached, Change, Informer};
use crate::cache::ChangeHandler;

/// The objects of an informer by a value that a function finds in them: Pods by node, Secrets by who uses them.
///
/// Kept up to date with the informer, before its handlers are told. An object at which the function panics is in none, which
/// is logged. It keeps the informer, as a clone of that does: a
/// handler of the informer is not to capture either.
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
/// fn crowded(by_node: &Index<Pod>, node: &str) -> bool {
///     by_node.get(node).count() > 100
/// }
/// ```
pub struct Index<K: Cached>(Arc<Shared<K>>);

struct Shared<K: Cached> {
    informer: Informer<K>,
    values: Values<K>,
    keys: Arc<Keys>,
}

type Values<K> = Arc<dyn Fn(&K) -> BTreeSet<String> + Send + Sync>;

/// The keys of the objects by value; what is read of them is read from the store.
type Keys = RwLock<HashMap<String, HashSet<Key>>>;

impl<K: Cached> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Cached> fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("values", &self.0.keys.read().len()).finish()
    }
}

impl<K: Cached> Index<K> {
    /// And what keeps it up to date.
    pub(crate) fn of<V: IntoIterator<Item = String>>(
        informer: Informer<K>,
        values: impl Fn(&K) -> V + Send + Sync + 'static,
    ) -> (Self, ChangeHandler<K>) {
        let values: Values<K> = Arc::new(move |object| {
            let found = catch_unwind(AssertUnwindSafe(|| values(object).into_iter().collect()));
            found.unwrap_or_else(|_| {
                tracing::error!(key = %Key::of(object), "the function of an index panicked: the object is in none");
                BTreeSet::new()
            })
        });
        let keys = Arc::new(Keys::default());
        let follow = follow(values.clone(), keys.clone());
        (Self(Arc::new(Shared { informer, values, keys })), follow)
    }

    /// The objects of this value, in no particular order. Each is decoded when the iterator comes to it.
    pub fn get(&self, value: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        let keys = self.0.keys.read().get(value).cloned().unwrap_or_default();
        let (shared, value) = (self.0.clone(), value.to_owned());
        keys.into_iter().filter_map(move |key| {
            let cache = &shared.informer.0.cache;
            // The object may have changed since the index was read.
            cache.get(&key).filter(|object| (shared.values)(object).contains(&value))
        })
    }
}

/// All values are found before the lock is taken, and none is seen half changed.
fn follow<K: Cached>(values: Values<K>, keys: Arc<Keys>) -> ChangeHandler<K> {
    Box::new(move |change| {
        let (left, joined) = match change {
            Change::Added(new) => (BTreeSet::new(), values(new)),
            Change::Deleted { last } => (values(last), BTreeSet::new()),
            Change::Updated { old, new } => (values(old), values(new)),
        };
        if left == joined {
            return;
        }
        let (key, mut keys) = (change.key(), keys.write());
        for value in left.difference(&joined) {
            let Some(found) = keys.get_mut(value) else { continue };
            found.remove(&key);
            if found.is_empty() {
                keys.remove(value);
            }
        }
        for value in joined.difference(&left) {
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

    use crate::{
        Context, Informer,
        testing::{map, server},
    };

    #[tokio::test]
    async fn it_keeps_its_informer() {
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
    async fn an_object_at_which_its_function_panics_is_in_no_index_and_fails_nobody() {
        let maps: Informer<ConfigMap> = Context::new("test", server().0).get();
        let index = maps.index(|map| {
            assert!(map.metadata.resource_version.as_deref() != Some("2"), "as planned");
            Some("all".to_owned())
        });
        let count = |version| {
            maps.apply(serde_json::from_value(map("a", version)).unwrap());
            index.get("all").count()
        };
        assert_eq!(["1", "2", "3"].map(count), [1, 0, 1]);
    }

    #[tokio::test]
    async fn whoever_reads_meanwhile_sees_an_updated_object_once() {
        let maps: Informer<ConfigMap> = Context::new("test", server().0).get();
        let index = maps.index(|_| (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
        let apply =
            |version: usize| maps.apply(serde_json::from_value(map("a", &version.to_string())).unwrap());
        apply(1);
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
            (2..1000).for_each(apply);
            done.store(true, Ordering::Relaxed);
            let counts = counts.join().unwrap();
            assert!(counts.iter().all(|count| *count == 1), "{counts:?}");
        });
        let newest = index.get("7").next().unwrap();
        assert_eq!(newest.metadata.resource_version.as_deref(), Some("999"), "the newest is held");
    }
}
