//! Finds the objects of an informer by a value computed from them.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::RwLock;

use crate::{Change, informer::Cached};

/// The objects of an informer by a value that a function finds in them: Pods by node, Secrets by who uses them.
///
/// Kept up to date with the informer, before its handlers are told. It lives as long as the informer.
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
pub struct Index<K>(Arc<RwLock<ByValue<K>>>);

type ByValue<K> = HashMap<String, Vec<Arc<K>>>;

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("values", &self.0.read().len()).finish()
    }
}

impl<K: Cached> Index<K> {
    pub(crate) fn empty() -> Self {
        Self(Arc::default())
    }

    /// The objects of this value, in no particular order.
    pub fn get(&self, value: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.0.read().get(value).cloned().unwrap_or_default().into_iter()
    }

    /// What keeps it up to date.
    pub(crate) fn follow<V, F>(&self, values: F) -> impl Fn(&Change<K>) + use<K, V, F>
    where
        V: IntoIterator<Item = String>,
        F: Fn(&K) -> V,
    {
        let index = self.0.clone();
        let values = move |object: &K| values(object).into_iter().collect::<Vec<_>>();
        // All values are found before the lock is taken, and none is seen half changed.
        move |change| match change {
            Change::Added(new) => {
                let joined = values(new);
                insert(&mut index.write(), new, joined);
            }
            Change::Deleted { last } => {
                let left = values(last);
                remove(&mut index.write(), last, &left);
            }
            Change::Updated { old, new } => {
                let (left, joined) = (values(old), values(new));
                let mut index = index.write();
                remove(&mut index, old, &left);
                insert(&mut index, new, joined);
            }
        }
    }
}

fn insert<K>(index: &mut ByValue<K>, object: &Arc<K>, values: Vec<String>) {
    for value in values {
        let found = index.entry(value).or_default();
        // The same value twice is one.
        if !found.last().is_some_and(|last| Arc::ptr_eq(last, object)) {
            found.push(object.clone());
        }
    }
}

fn remove<K>(index: &mut ByValue<K>, object: &Arc<K>, values: &[String]) {
    for value in values {
        let Some(found) = index.get_mut(value) else { continue };
        found.retain(|held| !Arc::ptr_eq(held, object));
        if found.is_empty() {
            index.remove(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::scripted::map;

    #[test]
    fn whoever_reads_meanwhile_sees_an_updated_object_once() {
        let index = Index::empty();
        let follow = index.follow(|_: &ConfigMap| (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
        let state = |version| Arc::new(serde_json::from_value::<ConfigMap>(map("a", version)).unwrap());
        let states = [state("1"), state("2")];
        follow(&Change::Added(states[0].clone()));
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
            for n in 0..2000 {
                let (old, new) = (states[n % 2].clone(), states[(n + 1) % 2].clone());
                follow(&Change::Updated { old, new });
            }
            done.store(true, Ordering::Relaxed);
            let counts = counts.join().unwrap();
            assert!(counts.iter().all(|count| *count == 1), "{counts:?}");
        });
        assert!(Arc::ptr_eq(&index.get("7").next().unwrap(), &states[0]), "the newest is held");
    }
}
