//! Objects that are there but cannot be decoded.

use std::collections::HashMap;

use reknit_apis::Key;

use crate::{raw::Raw, store::State, version::Version};

/// Why an object cannot be decoded, with the place; of a Secret without the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be decoded: {why}")]
pub struct DecodeError {
    pub(crate) why: String,
    pub(crate) uid: Option<String>,
}

impl DecodeError {
    /// The uid of the object, for an event about it: `kubectl describe` shows none without.
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }
}

/// The versions that could not be decoded when they came in, and are not held, so that each is told once; as many as the
/// API server holds of them.
#[derive(Default)]
pub(crate) struct Undecodable {
    refused: HashMap<Key, Entry>,
    /// The versions that are held, and were found when they were read; of the last list, and since.
    found: HashMap<Key, String>,
}

struct Entry {
    version: String,
    error: DecodeError,
    listed: bool,
}

impl Undecodable {
    /// Whether nobody was told of this version yet.
    pub(crate) fn is_news(&mut self, raw: &Raw<'_>, why: &str) -> bool {
        let error = DecodeError { why: why.into(), uid: raw.state().uid.map(Into::into) };
        let entry = Entry { version: raw.version().into(), error, listed: true };
        let known = self.refused.insert(raw.key(), entry);
        known.is_none_or(|known| known.version != raw.version())
    }

    /// Whether nobody has found this version yet, which is held.
    pub(crate) fn is_found(&mut self, state: &State<'_>) -> bool {
        let known = self.found.insert(state.key(), state.resource_version.into());
        known.is_none_or(|known| known != state.resource_version)
    }

    /// Whether some version of this object could not be decoded.
    pub(crate) fn concerns(&self, key: impl FnOnce() -> Key) -> bool {
        !self.refused.is_empty() && self.refused.contains_key(&key())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.refused.iter().map(|(key, entry)| (key, entry.error.why.as_str()))
    }

    /// Answers whether some version of the object could not be decoded when it came in.
    pub(crate) fn forget(&mut self, key: impl FnOnce() -> Key) -> bool {
        if self.refused.is_empty() && self.found.is_empty() {
            return false;
        }
        let key = key();
        self.found.remove(&key);
        self.refused.remove(&key).is_some()
    }

    /// This state is held: what could not be decoded before it does not matter any more.
    pub(crate) fn superseded(&mut self, by: &State<'_>) {
        if self.refused.is_empty() {
            return;
        }
        let key = by.key();
        let newer = |entry: &Entry| Version::parse(&entry.version) > by.version();
        if self.refused.get(&key).is_some_and(|entry| !newer(entry)) {
            self.refused.remove(&key);
        }
    }

    pub(crate) fn error(&self, key: &Key) -> Option<DecodeError> {
        self.refused.get(key).map(|entry| entry.error.clone())
    }

    pub(crate) fn list_begins(&mut self) {
        self.found.clear();
        self.refused.values_mut().for_each(|entry| entry.listed = false);
    }

    /// Answers what the list did not show.
    pub(crate) fn list_ends(&mut self) -> Vec<Key> {
        self.refused.extract_if(|_, entry| !entry.listed).map(|(key, _)| key).collect()
    }
}
