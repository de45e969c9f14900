//! The objects an informer holds, by namespace and name.

use std::{hash::BuildHasher, sync::Arc};

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use kube::{Resource, core::ObjectMeta};
use reknit_apis::Key;

use crate::{store::State, version::Version};

/// One table for each namespace, hashed by the objects' own names: no second copy of a key, and a namespace is
/// listed without looking at the others. Cluster-scoped objects are in the namespace `""`.
pub(crate) struct Table<K> {
    namespaces: HashMap<Box<str>, HashTable<Entry<K>>>,
    hasher: DefaultHashBuilder,
    len: usize,
    bytes: usize,
}

/// An object and what has to be known about it to order what comes.
pub(crate) struct Entry<K> {
    pub(crate) object: Arc<K>,
    pub(crate) bytes: u32,
    /// The last list that held it.
    pub(crate) listed: u32,
    /// The last list that had begun when this process wrote it; zero if it did not.
    pub(crate) written: u32,
}

impl<K: Resource> Entry<K> {
    /// Whether it is this very state.
    pub(crate) fn is(&self, state: &State<'_>) -> bool {
        let held = State::of(self.object.meta());
        !held.resource_version.is_empty()
            && (held.resource_version, held.uid) == (state.resource_version, state.uid)
    }

    pub(crate) fn version(&self) -> Option<Version<'_>> {
        Version::of(self.object.meta())
    }
}

fn namespace_of(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}

fn name_of(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { namespaces: HashMap::default(), hasher: DefaultHashBuilder::default(), len: 0, bytes: 0 }
    }
}

impl<K: Resource> Table<K> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Of the objects' compact JSON.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Entry<K>> {
        self.find(key.namespace.as_deref().unwrap_or_default(), &key.name)
    }

    /// What is held under this name.
    pub(crate) fn namesake(&self, state: &State<'_>) -> Option<&Entry<K>> {
        self.find(state.namespace.unwrap_or_default(), state.name)
    }

    pub(crate) fn namesake_mut(&mut self, state: &State<'_>) -> Option<&mut Entry<K>> {
        let table = self.namespaces.get_mut(state.namespace.unwrap_or_default())?;
        table.find_mut(self.hasher.hash_one(state.name), |held| name_of(held.object.meta()) == state.name)
    }

    fn find(&self, namespace: &str, name: &str) -> Option<&Entry<K>> {
        let table = self.namespaces.get(namespace)?;
        table.find(self.hasher.hash_one(name), |held| name_of(held.object.meta()) == name)
    }

    /// Holds it, and hands out what was held under its name.
    pub(crate) fn put(&mut self, entry: Entry<K>) -> Option<Arc<K>> {
        let meta = entry.object.meta();
        let hash = self.hasher.hash_one(name_of(meta));
        self.bytes += entry.bytes as usize;
        let table = match self.namespaces.get_mut(namespace_of(meta)) {
            Some(table) => table,
            None => self.namespaces.entry(namespace_of(meta).into()).or_default(),
        };
        if let Some(held) = table.find_mut(hash, |held| name_of(held.object.meta()) == name_of(meta)) {
            let old = std::mem::replace(held, entry);
            self.bytes -= old.bytes as usize;
            return Some(old.object);
        }
        table.insert_unique(hash, entry, |held| self.hasher.hash_one(name_of(held.object.meta())));
        self.len += 1;
        None
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let table = self.namespaces.get_mut(namespace)?;
        let hash = self.hasher.hash_one(key.name.as_str());
        let found = table.find_entry(hash, |held| name_of(held.object.meta()) == key.name).ok()?;
        let (removed, _) = found.remove();
        if table.is_empty() {
            self.namespaces.remove(namespace);
        }
        self.forget(&removed);
        Some(removed.object)
    }

    /// Keeps those of which `keep` is true, and hands out the others.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Entry<K>) -> bool) -> Vec<Arc<K>> {
        let mut removed = Vec::new();
        self.namespaces.retain(|_, table| {
            removed.extend(table.extract_if(|held| !keep(held)));
            !table.is_empty()
        });
        for entry in &removed {
            self.forget(entry);
        }
        removed.into_iter().map(|entry| entry.object).collect()
    }

    fn forget(&mut self, removed: &Entry<K>) {
        self.len -= 1;
        self.bytes -= removed.bytes as usize;
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.namespaces.values().flat_map(HashTable::iter).map(|held| &held.object)
    }

    pub(crate) fn within(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        self.namespaces.get(namespace).into_iter().flat_map(HashTable::iter).map(|held| &held.object)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn entry(namespace: &str, name: &str, bytes: u32) -> Entry<ConfigMap> {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        map.metadata.namespace = Some(namespace.to_owned()).filter(|n| !n.is_empty());
        Entry { object: Arc::new(map), bytes, listed: 0, written: 0 }
    }

    #[test]
    fn it_counts_what_it_holds_and_lets_go_of_empty_namespaces() {
        let mut table = Table::default();
        for n in 0..100 {
            assert!(table.put(entry(["", "a", "b"][n % 3], &format!("m{n}"), 10)).is_none());
        }
        assert!(table.put(entry("a", "m1", 30)).is_some(), "the same name again replaces");
        assert_eq!((table.len(), table.bytes()), (100, 1020));
        assert_eq!((table.all().count(), table.within("a").count(), table.within("").count()), (100, 33, 34));
        assert!(table.get(&Key::new("a", "m1")).is_some() && table.get(&Key::new("b", "m1")).is_none());
        assert!(table.remove(&Key::new("a", "m1")).is_some() && table.remove(&Key::new("a", "m1")).is_none());
        let removed = table.retain(|held| held.object.metadata.namespace.is_none());
        assert_eq!((removed.len(), table.len(), table.bytes(), table.namespaces.len()), (65, 34, 340, 1));
    }
}
