//! The stores of a cache: one for each part of its selection.

use reknit_apis::Key;

use super::{entries::Entry, store::Store};
use crate::{informer::selection::Selection, object::Object};

/// One store for each [part](Selection::parts) of the selection, since each part has its own list and watch.
///
/// A list of one namespace replaces only the objects of that namespace. Reads combine all stores.
pub(crate) struct Stores {
    namespaces: Selection,
    parts: Vec<Store>,
}

impl Stores {
    pub(super) fn of(selection: &Selection) -> Self {
        let parts = selection.parts().iter().map(|_| Store::default()).collect();
        Self { namespaces: selection.same_namespaces(), parts }
    }

    pub(crate) fn part(&self, part: usize) -> Option<&Store> {
        self.parts.get(part)
    }

    pub(super) fn part_mut(&mut self, part: usize) -> Option<&mut Store> {
        self.parts.get_mut(part)
    }

    /// The store of a namespace; `None` if the namespace is not selected.
    pub(super) fn in_namespace(&self, namespace: Option<&str>) -> Option<&Store> {
        self.part(self.namespaces.part_of(namespace)?)
    }

    pub(super) fn in_namespace_mut(&mut self, namespace: Option<&str>) -> Option<&mut Store> {
        self.part_mut(self.namespaces.part_of(namespace)?)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Entry> {
        self.in_namespace(key.namespace.as_deref())?.entries.get(key)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Object> {
        self.parts.iter().flat_map(|store| store.entries.all())
    }

    pub(crate) fn list_in(&self, namespace: &str) -> impl Iterator<Item = &Object> {
        self.in_namespace(Some(namespace))
            .into_iter()
            .flat_map(move |store| store.entries.in_namespace(namespace))
    }

    /// The number of objects.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|store| store.entries.len()).sum()
    }

    /// The size of all objects together, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|store| store.entries.bytes()).sum()
    }
}
