//! Objects that this process deleted, until the watch reports the deletion.

use std::collections::HashMap;

use reknit_apis::Key;

use crate::object::{ObjectState, ResourceVersion, raise};

/// The most tombstones kept. Without one, a late event may show a deleted object for a moment.
const MAX: usize = 10_000;

/// The keys that were removed from the cache before the watch reported it. The watch's reports about their past change
/// nothing.
#[derive(Default)]
pub(crate) struct Tombstones(HashMap<Key, Tombstone>);

#[derive(Default)]
struct Tombstone {
    /// The version at which no object had the key; empty if unknown.
    version: String,
    uid: Option<DeletedUid>,
    /// True if the tombstone was before the current list began, so that whatever the list holds is from after it.
    before_list: bool,
}

/// An object whose deletion was confirmed without a version. All its states are old, whatever their version.
struct DeletedUid {
    uid: String,
    /// The last cached version; empty if the server may not know it any more.
    last: String,
    /// True if the current list holds the object.
    listed: bool,
}

impl Tombstone {
    fn covers(&self, state: &ObjectState<'_>) -> bool {
        let before = state.version().is_some_and(|v| Some(v) <= ResourceVersion::parse(&self.version));
        before || self.uid.as_ref().is_some_and(|deleted| state.uid == Some(&deleted.uid))
    }
}

impl Tombstones {
    /// Remembers that no object had this key at this version. The removal may be older than a known one.
    pub(crate) fn add_version(&mut self, key: &Key, version: ResourceVersion<'_>) {
        if let Some(tombstone) = self.entry(key) {
            raise(&mut tombstone.version, Some(version));
        }
    }

    /// Remembers that the object of this uid, last cached at this version, is gone; `listed` says whether the current
    /// list holds it.
    pub(crate) fn add_uid(&mut self, key: &Key, uid: &str, last: Option<ResourceVersion<'_>>, listed: bool) {
        let Some(tombstone) = self.entry(key) else { return };
        raise(&mut tombstone.version, last);
        let last = last.map_or("", ResourceVersion::as_str).to_owned();
        tombstone.uid = Some(DeletedUid { uid: uid.into(), last, listed });
    }

    fn entry(&mut self, key: &Key) -> Option<&mut Tombstone> {
        if self.0.len() >= MAX && !self.0.contains_key(key) {
            return None;
        }
        let tombstone = self.0.entry(key.clone()).or_default();
        if tombstone.before_list {
            *tombstone = Tombstone::default();
        }
        Some(tombstone)
    }

    /// Returns true if the state is from before the removal of its key.
    pub(crate) fn cover(&self, state: &ObjectState<'_>) -> bool {
        !self.0.is_empty() && self.0.get(&state.key()).is_some_and(|tombstone| tombstone.covers(state))
    }

    /// Returns true if an item of the current list is from before the removal of its key.
    pub(crate) fn cover_item(&mut self, state: &ObjectState<'_>) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Some(tombstone) = self.0.get_mut(&state.key()) else { return false };
        if let Some(deleted) = &mut tombstone.uid {
            deleted.listed |= state.uid == Some(&deleted.uid);
        }
        !tombstone.before_list && tombstone.covers(state)
    }

    pub(crate) fn contain(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// Forgets the removal, since the key is cached again.
    pub(crate) fn remove(&mut self, state: &ObjectState<'_>) {
        if !self.0.is_empty() {
            self.0.remove(&state.key());
        }
    }

    /// Takes note of a deletion that the watch reported.
    pub(crate) fn confirm(&mut self, state: &ObjectState<'_>) {
        if self.0.is_empty() {
            return;
        }
        let key = state.key();
        let Some(tombstone) = self.0.get_mut(&key) else { return };
        tombstone.uid.take_if(|deleted| state.uid == Some(&deleted.uid));
        if state.version().is_none_or(|v| Some(v) >= ResourceVersion::parse(&tombstone.version)) {
            self.0.remove(&key);
        }
    }

    /// Forgets what the watch, which has reported everything up to this version, has confirmed.
    pub(crate) fn expire(&mut self, version: ResourceVersion<'_>) {
        self.0.retain(|_, tombstone| {
            tombstone.uid.is_some() || ResourceVersion::parse(&tombstone.version) > Some(version)
        });
    }

    /// Marks all removals as older than the list that begins. They matter only for late answers to writes.
    pub(crate) fn start_list(&mut self) {
        self.0.values_mut().for_each(|tombstone| tombstone.before_list = true);
    }

    /// Forgets, after a list of this version, what the watch will not report any more.
    pub(crate) fn finish_list(&mut self, version: Option<ResourceVersion<'_>>) {
        let later = |than: &str| version.is_some_and(|version| ResourceVersion::parse(than) > Some(version));
        self.0.retain(|_, tombstone| {
            tombstone.uid.take_if(|deleted| !deleted.listed && !later(&deleted.last));
            !tombstone.before_list && (tombstone.uid.is_some() || later(&tombstone.version))
        });
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
