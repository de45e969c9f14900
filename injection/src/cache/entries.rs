//! The objects of a cache, by namespace and name.

use std::hash::BuildHasher;

use hashbrown::{HashTable, hash_table};
use reknit_apis::{
    Key,
    internal::{HashMap, HashState},
};

use crate::object::{Object, ObjectState, ResourceVersion};

/// The cached objects: one hash table per namespace, hashed by the names in the objects.
///
/// This way, keys are not stored beside the objects, and one namespace is listed without visiting other namespaces.
/// Cluster-scoped objects are in the namespace `""`.
#[derive(Default)]
pub(crate) struct Entries {
    namespaces: HashMap<Box<str>, HashTable<Entry>>,
    hasher: HashState,
    len: usize,
    bytes: usize,
}

/// A cached object, and the lists during which it was last listed and last written.
pub(crate) struct Entry {
    pub(crate) object: Object,
    /// The number of the last list that contained the object, or that had begun when the watch reported the cached
    /// state. Zero if the state comes from the response to an own write that no later list contained.
    pub(crate) listed: u32,
    /// The number of the last list that had begun when this process wrote the cached state. Zero if the state comes
    /// from a list or the watch.
    pub(crate) written: u32,
}

impl Entry {
    pub(crate) fn version(&self) -> Option<ResourceVersion<'_>> {
        self.object.version()
    }

    fn is_named(&self, name: &str) -> bool {
        self.object.name() == name
    }
}

impl Entries {
    /// The number of objects.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The size of all objects together, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Entry> {
        self.find(key.namespace.as_deref(), &key.name)
    }

    /// The entry of the same namespace and name.
    pub(crate) fn get_by_state(&self, state: &ObjectState<'_>) -> Option<&Entry> {
        self.find(state.namespace, state.name)
    }

    /// Marks the entry of the same namespace and name as contained in this list, and returns it.
    pub(crate) fn mark_listed(&mut self, state: &ObjectState<'_>, list: u32) -> Option<&Entry> {
        let table = self.namespaces.get_mut(state.namespace.unwrap_or_default())?;
        let entry =
            table.find_mut(hash_name(&self.hasher, state.name), |entry| entry.is_named(state.name))?;
        entry.listed = list;
        Some(entry)
    }

    fn find(&self, namespace: Option<&str>, name: &str) -> Option<&Entry> {
        let table = self.namespaces.get(namespace.unwrap_or_default())?;
        table.find(hash_name(&self.hasher, name), |entry| entry.is_named(name))
    }

    /// Inserts the object and returns the object that it replaces, if any.
    pub(crate) fn put(&mut self, object: Object, listed: u32, written: u32) -> Option<Object> {
        let ObjectState { namespace, name, .. } = object.state();
        let hasher = &self.hasher;
        let namespace = namespace.unwrap_or_default();
        let table = match self.namespaces.get_mut(namespace) {
            Some(table) => table,
            None => self.namespaces.entry(namespace.into()).or_default(),
        };
        let slot = table.entry(
            hash_name(hasher, name),
            |entry| entry.is_named(name),
            |entry| hash_name(hasher, entry.object.name()),
        );
        self.bytes += object.len();
        let entry = Entry { object: object.clone(), listed, written };
        match slot {
            hash_table::Entry::Vacant(vacant) => {
                vacant.insert(entry);
                self.len += 1;
                None
            }
            hash_table::Entry::Occupied(mut occupied) => {
                let old = std::mem::replace(occupied.get_mut(), entry).object;
                self.bytes -= old.len();
                Some(old)
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Object> {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let table = self.namespaces.get_mut(namespace)?;
        let occupied =
            table.find_entry(hash_name(&self.hasher, &key.name), |entry| entry.is_named(&key.name)).ok()?;
        let (Entry { object, .. }, _) = occupied.remove();
        if table.is_empty() {
            self.namespaces.remove(namespace);
        }
        self.len -= 1;
        self.bytes -= object.len();
        Some(object)
    }

    /// Removes and returns the objects for which `keep` is false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) -> Vec<Object> {
        let mut removed = Vec::new();
        self.namespaces.retain(|_, table| {
            removed.extend(table.extract_if(|entry| !keep(entry)).map(|entry| entry.object));
            !table.is_empty()
        });
        self.len -= removed.len();
        self.bytes -= removed.iter().map(Object::len).sum::<usize>();
        removed
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Object> {
        self.namespaces.values().flatten().map(|entry| &entry.object)
    }

    pub(crate) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Object> {
        self.namespaces.get(namespace).into_iter().flatten().map(|entry| &entry.object)
    }
}

fn hash_name(hasher: &HashState, name: &str) -> u64 {
    hasher.hash_one(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ObjectParts;

    fn object(namespace: &str, name: &str, rest: &str) -> Object {
        let namespace = Some(namespace).filter(|n| !n.is_empty());
        let state = ObjectState { namespace, name, uid: None, resource_version: "1" };
        Object::new(&ObjectParts { state, is_terminating: false, metadata: b"", rest: rest.as_bytes() })
            .unwrap()
    }

    #[test]
    fn objects_are_counted_and_empty_namespaces_are_removed() {
        let mut entries = Entries::default();
        let (listed, written) = (0, 0);
        let put = |entries: &mut Entries, namespace, name: &str, rest| {
            entries.put(object(namespace, name, rest), listed, written)
        };
        for n in 0..100 {
            assert!(put(&mut entries, ["", "a", "b"][n % 3], &format!("m{n:03}"), "").is_none());
        }
        let before = entries.bytes();
        assert!(put(&mut entries, "a", "m001", "more").is_some(), "an object of the same name is replaced");
        assert_eq!((entries.len(), entries.bytes()), (100, before + 4));
        assert_eq!(
            (entries.all().count(), entries.in_namespace("a").count(), entries.in_namespace("").count()),
            (100, 33, 34)
        );
        assert!(
            entries.get(&Key::new("a", "m001")).is_some() && entries.get(&Key::new("b", "m001")).is_none()
        );
        assert!(
            entries.remove(&Key::new("a", "m001")).is_some()
                && entries.remove(&Key::new("a", "m001")).is_none()
        );
        let removed = entries.retain(|entry| entry.object.state().namespace.is_none());
        assert_eq!((removed.len(), entries.len(), entries.namespaces.len()), (65, 34, 1));
        assert_eq!(entries.bytes(), entries.all().map(Object::len).sum::<usize>());
    }
}
