//! Objects that are there but cannot be decoded.

use std::collections::HashMap;

use reknit_apis::Key;

use crate::{raw::Raw, version::Version};

/// The versions that could not be decoded, so that each is told once; as many as the API server holds of them.
#[derive(Default)]
pub(crate) struct Undecodable(HashMap<Key, Entry>);

struct Entry {
    version: String,
    why: String,
    listed: bool,
}

impl Undecodable {
    /// Whether nobody was told of this version yet.
    pub(crate) fn is_news(&mut self, raw: &Raw<'_>, why: &str) -> bool {
        let entry = Entry { version: raw.version().into(), why: why.into(), listed: true };
        let known = self.0.insert(raw.key(), entry);
        known.is_none_or(|known| known.version != raw.version())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.0.iter().map(|(key, entry)| (key, entry.why.as_str()))
    }

    pub(crate) fn forget(&mut self, key: impl FnOnce() -> Key) {
        if !self.0.is_empty() {
            self.0.remove(&key());
        }
    }

    /// This state can be decoded, or is known already: what could not be decoded before it does not matter any more.
    pub(crate) fn superseded(&mut self, by: &Raw<'_>) {
        if self.0.is_empty() {
            return;
        }
        let (key, state) = (by.key(), by.state());
        let newer = |entry: &Entry| Version::parse(&entry.version) > state.version();
        if self.0.get(&key).is_some_and(|entry| !newer(entry)) {
            self.0.remove(&key);
        }
    }

    pub(crate) fn why(&self, key: &Key) -> Option<String> {
        self.0.get(key).map(|entry| entry.why.clone())
    }

    pub(crate) fn list_begins(&mut self) {
        self.0.values_mut().for_each(|entry| entry.listed = false);
    }

    pub(crate) fn list_ends(&mut self) {
        self.0.retain(|_, entry| entry.listed);
    }
}
