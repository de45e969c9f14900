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
        move |change| match change {
            Change::Added(new) => insert(&index, new, values(new)),
            Change::Deleted { last } => remove(&index, last, values(last)),
            Change::Updated { old, new } => {
                let (left, joined) = (values(old), values(new));
                remove(&index, old, left);
                insert(&index, new, joined);
            }
        }
    }
}

fn insert<K>(index: &RwLock<ByValue<K>>, object: &Arc<K>, values: impl IntoIterator<Item = String>) {
    for value in values {
        let mut index = index.write();
        let found = index.entry(value).or_default();
        // The same value twice is one.
        if !found.last().is_some_and(|last| Arc::ptr_eq(last, object)) {
            found.push(object.clone());
        }
    }
}

fn remove<K>(index: &RwLock<ByValue<K>>, object: &Arc<K>, values: impl IntoIterator<Item = String>) {
    for value in values {
        let mut index = index.write();
        let Some(found) = index.get_mut(&value) else { continue };
        found.retain(|held| !Arc::ptr_eq(held, object));
        if found.is_empty() {
            index.remove(&value);
        }
    }
}
