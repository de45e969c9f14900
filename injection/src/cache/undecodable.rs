//! Objects that exist but cannot be decoded.

use reknit_apis::{Key, internal::HashMap};

use crate::{
    informer::GaugeShare,
    object::{Object, ObjectState, RawObject, ResourceVersion},
};

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
pub(crate) struct Undecodable {
    entries: HashMap<Key, Entry>,
    count: GaugeShare,
}

struct Entry {
    version: String,
    error: DecodeError,
    /// The state; `None` if it could not be encoded.
    object: Option<Object>,
    /// False if the current list has not contained the object yet.
    is_listed: bool,
}

impl Undecodable {
    /// `count` is the gauge of these states.
    pub(crate) fn new(count: GaugeShare) -> Self {
        Self { entries: HashMap::default(), count }
    }

    /// Changes the entries, and sets their gauge.
    fn change<T>(&mut self, change: impl FnOnce(&mut HashMap<Key, Entry>) -> T) -> T {
        let result = change(&mut self.entries);
        self.count.set(self.entries.len());
        result
    }

    /// Adds a state. Returns false if the key already has an undecodable state of the same version.
    pub(crate) fn add(&mut self, raw: &RawObject<'_>, object: Option<Object>, why: &str) -> bool {
        let version = raw.resource_version();
        let error = DecodeError { why: why.into(), uid: raw.state().uid.map(Into::into) };
        let entry = Entry { version: version.into(), error, object, is_listed: true };
        let previous = self.change(|entries| entries.insert(raw.key(), entry));
        previous.is_none_or(|previous| previous.version != version)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.entries.iter().map(|(key, entry)| (key, entry.error.why.as_str()))
    }

    pub(crate) fn error(&self, key: &Key) -> Option<DecodeError> {
        self.entries.get(key).map(|entry| entry.error.clone())
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    pub(crate) fn object(&self, key: &Key) -> Option<Object> {
        self.entries.get(key).and_then(|entry| entry.object.clone())
    }

    /// Removes the undecodable state of this key, and returns true if there was one.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        !self.is_empty() && self.change(|entries| entries.remove(key).is_some())
    }

    /// Removes the undecodable state of the same key as `by`, unless it is newer than `by`. Returns true if it was
    /// removed.
    pub(crate) fn supersede(&mut self, by: &ObjectState<'_>) -> bool {
        if self.is_empty() {
            return false;
        }
        let key = by.key();
        let is_newer = |entry: &Entry| ResourceVersion::parse(&entry.version) > by.version();
        self.entries.get(&key).is_some_and(|entry| !is_newer(entry)) && self.remove(&key)
    }

    /// Marks the entries of one part of the selection, such as one of its namespaces, as not listed, because a list of
    /// that part starts. `is_in_part` returns true for the keys of the part.
    pub(crate) fn start_list(&mut self, is_in_part: impl Fn(&Key) -> bool) {
        let entries = self.entries.iter_mut().filter(|(key, _)| is_in_part(key));
        entries.for_each(|(_, entry)| entry.is_listed = false);
    }

    /// Called when the list of that part has ended. Removes the states of that part that the list did not contain, and
    /// returns their keys.
    pub(crate) fn finish_list(&mut self, is_in_part: impl Fn(&Key) -> bool) -> Vec<Key> {
        let is_gone = |key: &Key, entry: &mut Entry| !entry.is_listed && is_in_part(key);
        self.change(|entries| entries.extract_if(is_gone).map(|(key, _)| key).collect())
    }
}
