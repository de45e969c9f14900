//! Tombstones: deletions by this process that the watch has not reported yet.

use reknit_apis::{Key, internal::HashMap};

use crate::object::{ObjectState, ResourceVersion, raise};

/// The maximum number of tombstones. A further deletion gets no tombstone, so a late event may bring the object back
/// into the cache until the watch reports the deletion.
const MAX_TOMBSTONES: usize = 10_000;

/// The tombstones by key. States of an object from before its deletion are dropped until the watch has reported the
/// deletion.
#[derive(Default)]
pub(crate) struct Tombstones(HashMap<Key, Tombstone>);

#[derive(Default)]
struct Tombstone {
    /// A version at which no object had this key; empty if unknown.
    version: String,
    uid: Option<DeletedUid>,
    /// True if the deletion came before the current list began. The items of the list are newer, so the tombstone is
    /// compared only with late responses to writes.
    before_list: bool,
}

/// A deleted object whose deletion has no known resourceVersion. Every state with this uid is stale.
struct DeletedUid {
    uid: String,
    /// The last cached version. Empty if the object was cached before the current list, since the list may come from a
    /// restored server with lower versions.
    last_version: String,
    /// True if the current list contains the object.
    is_listed: bool,
}

impl Tombstone {
    fn is_newer_than(&self, state: &ObjectState<'_>) -> bool {
        let is_before =
            state.version().is_some_and(|version| Some(version) <= ResourceVersion::parse(&self.version));
        is_before || self.uid.as_ref().is_some_and(|deleted| state.uid == Some(&deleted.uid))
    }
}

impl Tombstones {
    /// Records that no object had this key at this version. An existing tombstone keeps the higher version.
    pub(crate) fn add_version(&mut self, key: &Key, version: ResourceVersion<'_>) {
        if let Some(tombstone) = self.get_or_create(key) {
            raise(&mut tombstone.version, Some(version));
        }
    }

    /// Records the deletion of this uid, last cached at version `last`. `is_listed` is true if the current list
    /// contains the object.
    pub(crate) fn add_uid(
        &mut self,
        key: &Key,
        uid: &str,
        last: Option<ResourceVersion<'_>>,
        is_listed: bool,
    ) {
        let Some(tombstone) = self.get_or_create(key) else { return };
        raise(&mut tombstone.version, last);
        let last_version = last.map_or("", ResourceVersion::as_str).to_owned();
        tombstone.uid = Some(DeletedUid { uid: uid.into(), last_version, is_listed });
    }

    /// Returns the tombstone of this key. A missing tombstone is created, and a tombstone from before the current list
    /// is replaced by a new one. `None` if a new key would exceed [`MAX_TOMBSTONES`].
    fn get_or_create(&mut self, key: &Key) -> Option<&mut Tombstone> {
        if self.0.len() >= MAX_TOMBSTONES && !self.0.contains_key(key) {
            return None;
        }
        let tombstone = self.0.entry(key.clone()).or_default();
        if tombstone.before_list {
            *tombstone = Tombstone::default();
        }
        Some(tombstone)
    }

    /// Returns true if the state is from before the deletion of its key.
    pub(crate) fn is_stale(&self, state: &ObjectState<'_>) -> bool {
        !self.0.is_empty() && self.0.get(&state.key()).is_some_and(|tombstone| tombstone.is_newer_than(state))
    }

    /// Records that the current list contains the object of this item. Returns true if the item is from before the
    /// deletion of its key.
    pub(crate) fn mark_listed(&mut self, state: &ObjectState<'_>) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Some(tombstone) = self.0.get_mut(&state.key()) else { return false };
        if let Some(deleted) = &mut tombstone.uid {
            deleted.is_listed |= state.uid == Some(&deleted.uid);
        }
        !tombstone.before_list && tombstone.is_newer_than(state)
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// Removes the tombstone, because the key is cached again.
    pub(crate) fn remove(&mut self, state: &ObjectState<'_>) {
        if !self.0.is_empty() {
            self.0.remove(&state.key());
        }
    }

    /// Applies a deletion that the watch reports: removes the tombstone if it records this deletion or an earlier one.
    pub(crate) fn confirm(&mut self, state: &ObjectState<'_>) {
        if self.0.is_empty() {
            return;
        }
        let key = state.key();
        let Some(tombstone) = self.0.get_mut(&key) else { return };
        tombstone.uid.take_if(|deleted| state.uid == Some(&deleted.uid));
        if state.version().is_none_or(|version| Some(version) >= ResourceVersion::parse(&tombstone.version)) {
            self.0.remove(&key);
        }
    }

    /// Drops the tombstones up to this version, since the watch has reported all deletions up to it. A tombstone with a
    /// uid stays until the watch reports the deletion of that uid.
    pub(crate) fn expire(&mut self, version: ResourceVersion<'_>) {
        self.0.retain(|_, tombstone| {
            tombstone.uid.is_some() || ResourceVersion::parse(&tombstone.version) > Some(version)
        });
    }

    /// Marks all tombstones as older than the list that begins.
    pub(crate) fn start_list(&mut self) {
        self.0.values_mut().for_each(|tombstone| tombstone.before_list = true);
    }

    /// Ends a list of this version: drops the tombstones whose deletion the list already shows, since the watch after
    /// the list does not report it.
    pub(crate) fn finish_list(&mut self, version: Option<ResourceVersion<'_>>) {
        let is_later =
            |deletion: &str| version.is_some_and(|version| ResourceVersion::parse(deletion) > Some(version));
        self.0.retain(|_, tombstone| {
            tombstone.uid.take_if(|deleted| !deleted.is_listed && !is_later(&deleted.last_version));
            !tombstone.before_list && (tombstone.uid.is_some() || is_later(&tombstone.version))
        });
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
