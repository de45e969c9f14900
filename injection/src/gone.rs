//! Objects that this process removed, while the watch has yet to say so.

use std::collections::HashMap;

use reknit_apis::Key;

use crate::{store::State, version::Version};

/// More are not remembered: without it, a late event shows an object for a moment that is gone already.
const MOST: usize = 10_000;

/// Keys that were removed before the watch told of it. What the watch still has to say about their past is no news.
#[derive(Default)]
pub(crate) struct Gone(HashMap<Key, Removal>);

struct Removal {
    /// No later than this version the object had gone.
    until: String,
    /// The object whose deletion was confirmed without a version: nothing about it is news, whatever its version.
    uid: Option<String>,
    /// Whether the list under way still holds it.
    met: bool,
}

impl Gone {
    pub(crate) fn add(&mut self, key: Key, until: Version<'_>, uid: Option<&str>) {
        if self.0.len() < MOST || self.0.contains_key(&key) {
            let removal = Removal { until: until.as_str().into(), uid: uid.map(Into::into), met: false };
            self.0.insert(key, removal);
        }
    }

    /// Whether a state of this key is from before its removal. If it is from after, the removal is forgotten.
    pub(crate) fn covers(&mut self, state: &State<'_>) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let key = state.key();
        let Some(removal) = self.0.get(&key) else { return false };
        let before = state.version.is_some_and(|v| Some(v) <= Version::parse(&removal.until));
        let covered = before || (state.uid.is_some() && state.uid == removal.uid.as_deref());
        if !covered {
            self.0.remove(&key);
        }
        covered
    }

    /// The same for an item of the list under way.
    pub(crate) fn covers_listed(&mut self, state: &State<'_>) -> bool {
        let covered = self.covers(state);
        if covered && let Some(removal) = self.0.get_mut(&state.key()) {
            removal.met = true;
        }
        covered
    }

    /// The watch told of this deletion.
    pub(crate) fn confirmed(&mut self, key: &Key, version: Option<Version<'_>>) {
        let Some(removal) = self.0.get(key) else { return };
        if version.is_none_or(|v| Some(v) >= Version::parse(&removal.until)) {
            self.0.remove(key);
        }
    }

    /// The watch has told everything up to this version.
    pub(crate) fn passed(&mut self, version: Version<'_>) {
        if !self.0.is_empty() {
            self.0
                .retain(|_, removal| removal.uid.is_some() || Version::parse(&removal.until) > Some(version));
        }
    }

    /// A list begins: what was removed before cannot be in it.
    pub(crate) fn list_begins(&mut self) {
        self.0.clear();
    }

    /// A list of this version was read to its end: a removal that it does not show lies behind it.
    pub(crate) fn list_ends(&mut self, version: Option<Version<'_>>) {
        self.0.retain(|_, removal| match removal.uid {
            Some(_) => removal.met,
            None => version.is_some_and(|v| Version::parse(&removal.until) > Some(v)),
        });
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
