//! Objects that exist but cannot be decoded.

use reknit_apis::{Key, internal::HashMap};

use crate::object::{Object, ObjectState, RawObject, ResourceVersion};

/// The reason why an object cannot be decoded, with the path of the field. The values of a Secret are not quoted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode the object: {why}")]
pub struct DecodeError {
    pub(crate) why: String,
    pub(crate) uid: Option<String>,
}

impl DecodeError {
    /// Returns the uid of the object, for the warning event about it: `kubectl describe` shows only events that have the
    /// uid.
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }
}

/// The newest states that could not be decoded, by key. The cache keeps the last state that could be decoded instead.
#[derive(Default)]
pub(crate) struct Undecodable(HashMap<Key, Entry>);

struct Entry {
    version: String,
    error: DecodeError,
    /// The state; `None` if it could not be encoded.
    object: Option<Object>,
    /// False if the current list has not contained the object yet.
    is_listed: bool,
}

impl Undecodable {
    /// Adds a state. Returns false if the key already has an undecodable state of the same version.
    pub(crate) fn add(&mut self, raw: &RawObject<'_>, object: Option<Object>, why: &str) -> bool {
        let version = raw.resource_version();
        let error = DecodeError { why: why.into(), uid: raw.state().uid.map(Into::into) };
        let entry = Entry { version: version.into(), error, object, is_listed: true };
        let previous = self.0.insert(raw.key(), entry);
        previous.is_none_or(|previous| previous.version != version)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.0.iter().map(|(key, entry)| (key, entry.error.why.as_str()))
    }

    pub(crate) fn error(&self, key: &Key) -> Option<DecodeError> {
        self.0.get(key).map(|entry| entry.error.clone())
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    pub(crate) fn object(&self, key: &Key) -> Option<Object> {
        self.0.get(key).and_then(|entry| entry.object.clone())
    }

    /// Removes the undecodable state of this key, and returns true if there was one.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        self.0.remove(key).is_some()
    }

    /// Removes the undecodable state of the same key as `by`, unless it is newer than `by`. Returns true if it was
    /// removed.
    pub(crate) fn supersede(&mut self, by: &ObjectState<'_>) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let key = by.key();
        let is_newer = |entry: &Entry| ResourceVersion::parse(&entry.version) > by.version();
        self.0.get(&key).is_some_and(|entry| !is_newer(entry)) && self.remove(&key)
    }

    /// Marks the entries of one part of the selection, such as one of its namespaces, as not listed, because a list of
    /// that part starts. `is_in_part` returns true for the keys of the part.
    pub(crate) fn start_list(&mut self, is_in_part: impl Fn(&Key) -> bool) {
        let entries = self.0.iter_mut().filter(|(key, _)| is_in_part(key));
        entries.for_each(|(_, entry)| entry.is_listed = false);
    }

    /// Called when the list of that part has ended. Removes the states of that part that the list did not contain, and
    /// returns their keys.
    pub(crate) fn finish_list(&mut self, is_in_part: impl Fn(&Key) -> bool) -> Vec<Key> {
        self.0.extract_if(|key, entry| !entry.is_listed && is_in_part(key)).map(|(key, _)| key).collect()
    }
}
