//! A change of one object, reported without decoding the object.

use std::collections::BTreeMap;

use reknit_apis::Key;

use crate::{cache::delta::Delta, object::Object};

/// A change of an object, with the values that are known without decoding the object: key, labels and resourceVersion.
/// The handlers of [`Informer::on_key_event`](crate::Informer::on_key_event) receive it.
#[derive(Clone, derive_more::Debug)]
#[debug("KeyEvent {{ key: {key:?}, resource_version: {:?} }}", self.resource_version())]
pub struct KeyEvent<'a> {
    key: Key,
    old: Option<&'a Object>,
    new: Option<&'a Object>,
    is_undecodable: bool,
}

impl<'a> KeyEvent<'a> {
    pub(crate) fn of(delta: &'a Delta) -> Self {
        let [old, new] = delta.objects();
        Self { key: delta.latest().state().key(), old, new, is_undecodable: false }
    }

    /// The event of a cached object that did not change: it is replayed for a new handler, or its newer, undecodable
    /// state was dropped.
    pub(crate) fn cached(object: &'a Object) -> Self {
        Self { key: object.state().key(), old: None, new: Some(object), is_undecodable: false }
    }

    /// The event of a state that cannot be decoded. `new` is `None` if the state could not be encoded, or if the event
    /// is replayed for a new handler.
    pub(crate) fn undecodable(key: Key, new: Option<&'a Object>) -> Self {
        Self { key, old: None, new, is_undecodable: true }
    }

    /// The event of a deleted object that was not cached, since it could not be decoded.
    pub(crate) fn deleted(key: Key) -> Self {
        Self { key, old: None, new: None, is_undecodable: false }
    }

    /// Returns the key of the object.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns true if the object was deleted or left the selection.
    pub fn is_deleted(&self) -> bool {
        self.new.is_none() && !self.is_undecodable
    }

    /// Returns true if the object was not cached before.
    pub fn is_added(&self) -> bool {
        self.old.is_none() && self.new.is_some()
    }

    /// Returns the uid of the new state, or the last one of a deleted object.
    pub fn uid(&self) -> Option<&'a str> {
        self.new.or(self.old)?.state().uid
    }

    /// Returns the resourceVersion of the new state. `None` if the object was deleted or could not be decoded.
    pub fn resource_version(&self) -> Option<&'a str> {
        let new = self.new.filter(|_| !self.is_undecodable)?;
        Some(new.state().resource_version).filter(|version| !version.is_empty())
    }

    /// Returns the labels of the old state, if it was cached, and of the new state, if the object exists and could be
    /// encoded.
    pub fn labels(&self) -> impl Iterator<Item = BTreeMap<String, String>> + use<'a> {
        [self.old, self.new].into_iter().flatten().map(Object::labels)
    }
}
