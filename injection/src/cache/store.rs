//! The rules by which lists, watches and own writes change the cached objects.
//!
//! Three sources report the same objects at different times: a list, whose pages are one snapshot; a watch, which
//! reports everything after that snapshot in order; and the responses to this process's own writes, which arrive at any
//! moment, before or after their echo in the watch. The rules:
//!
//! - A list replaces all cached objects, except those that this process has written since the list began. Lists are
//!   consistent reads, so they contain everything that was written before they began. A list is applied even if its
//!   version is lower than before, so the cache follows a server that was restored from a backup. An item of the cached
//!   version replaces the object if its content differs: the API server applies defaults, pruning and conversion when it
//!   reads, so a changed definition changes what it returns for a stored state.
//! - Of two states of an object, the state with the higher resourceVersion is newer. An older state, or one of the same
//!   version (an echo), is dropped. An object with another uid under the same name is another object.
//! - The watch has reported everything up to the version `reached`. If an own write has a version up to `reached` and
//!   its object is not cached, the object has been deleted since, and the write is dropped.
//! - An object that an own write removed has a [tombstone](Tombstones) until the watch has reported the deletion too.
//! - If a version cannot be ordered, states are applied in the order of the watch, and own writes only once the watch
//!   reports them.

#[cfg(test)]
mod tests;

use reknit_apis::Key;

use super::{
    delta::{Delta, Deltas},
    entries::{Entries, Entry},
    tombstones::Tombstones,
};
use crate::object::{Object, ObjectState, ResourceVersion, raise};

const NO_DELTAS: Deltas = [None, None];
/// The value of [`Entry::written`] for a state that this process did not write.
pub(crate) const NOT_OWN_WRITE: u32 = 0;
/// The value of [`Entry::listed`] for a state that comes from the response to an own write.
const NOT_LISTED: u32 = 0;

/// The cached objects of one part of the selection, and the versions that its lists and watches have reached.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) entries: Entries,
    tombstones: Tombstones,
    /// The number of lists that have begun, which is also the number of the current or last list.
    lists: u32,
    /// The version up to which the last list or the watch has reported everything. Empty before the first list.
    reached: String,
    /// The highest version seen since the last list.
    highest: String,
    /// The highest version of a response to an own write or read that the watch reports too. Empty before the first.
    last_response: String,
    /// True if the version of the last list cannot be ordered.
    unordered: bool,
}

/// Returns true if `version` is lower than `other`, and false if either is unknown: then the later arrival counts as
/// newer.
fn is_older(version: Option<ResourceVersion<'_>>, other: Option<ResourceVersion<'_>>) -> bool {
    matches!((version, other), (Some(version), Some(other)) if version < other)
}

impl Store {
    /// Starts a list. Must be called before the first request of the list is sent.
    pub(crate) fn start_list(&mut self) {
        self.lists += 1;
        self.tombstones.start_list();
    }

    /// Applies an item of the current list.
    pub(crate) fn apply_listed(&mut self, item: Object) -> Deltas {
        if self.mark_listed(&item.state(), |cached| cached.is_identical(&item)) {
            return NO_DELTAS;
        }
        self.put(item, NOT_OWN_WRITE)
    }

    /// Marks the cached object of an item of the current list as listed. Returns true if the item is stale: it is the
    /// cached state, or this process has, since the list began, deleted the object or written a state that is not older
    /// than the item.
    ///
    /// `has_content_of` returns true if the cached object of the same version has the content of the item.
    pub(crate) fn mark_listed(
        &mut self,
        item: &ObjectState<'_>,
        has_content_of: impl FnOnce(&Object) -> bool,
    ) -> bool {
        if self.tombstones.mark_listed(item) {
            return true;
        }
        let lists = self.lists;
        let Some(entry) = self.entries.mark_listed(item, lists) else { return false };
        let is_own_write = entry.written == lists && !is_older(entry.version(), item.version());
        is_own_write || (entry.object.is_same_state(item) && has_content_of(&entry.object))
    }

    /// Ends the current list, and removes and returns the objects that it did not contain.
    pub(crate) fn finish_list(&mut self, version: &str) -> Vec<Object> {
        let (snapshot, lists) = (ResourceVersion::parse(version), self.lists);
        let mut highest = version.to_owned();
        let removed = self.entries.retain(|entry| {
            let is_later_write =
                entry.written == lists && snapshot.is_some() && is_older(snapshot, entry.version());
            if is_later_write {
                raise(&mut highest, entry.version());
            }
            entry.listed == lists || is_later_write
        });
        self.unordered = snapshot.is_none();
        self.tombstones.finish_list(snapshot);
        version.clone_into(&mut self.reached);
        if is_older(ResourceVersion::parse(&highest), ResourceVersion::parse(&self.last_response)) {
            self.last_response.clear(); // of a server that was restored since
        }
        self.highest = highest;
        removed
    }

    /// Applies an `ADDED` or `MODIFIED` event of the watch.
    pub(crate) fn apply_watched(&mut self, item: Object) -> Deltas {
        let state = item.state();
        let is_stale = self.is_stale(&state);
        self.advance(state.version());
        if is_stale { NO_DELTAS } else { self.put(item, NOT_OWN_WRITE) }
    }

    /// Returns true if a state that the watch reports is the cached state, or older than the cached state or than an
    /// own deletion.
    ///
    /// The cache calls this before it decodes the object, and [`advance`](Self::advance) only after decoding: the
    /// response to an own write may arrive in between, and would be dropped if `reached` already included its version.
    pub(crate) fn is_stale(&self, item: &ObjectState<'_>) -> bool {
        let has_newer_or_same =
            |entry: &Entry| entry.object.is_same_state(item) || is_older(item.version(), entry.version());
        self.tombstones.is_stale(item) || self.entries.get_by_state(item).is_some_and(has_newer_or_same)
    }

    /// Applies a `DELETED` event of the watch: the object is gone or left the selection.
    pub(crate) fn apply_deletion(&mut self, state: &ObjectState<'_>) -> Deltas {
        let key = state.key();
        self.advance(state.version());
        self.tombstones.confirm(state);
        if self.entries.get(&key).is_some_and(|entry| is_older(state.version(), entry.version())) {
            return NO_DELTAS;
        }
        self.remove(&key)
    }

    /// Records that the watch has reported everything up to this version.
    pub(crate) fn advance(&mut self, version: Option<ResourceVersion<'_>>) {
        raise(&mut self.reached, version);
        raise(&mut self.highest, version);
    }

    /// Applies a `BOOKMARK` event of the watch.
    pub(crate) fn apply_bookmark(&mut self, version: &str) {
        let version = ResourceVersion::parse(version);
        self.advance(version);
        if let Some(version) = version {
            self.tombstones.expire(version);
        }
    }

    /// Applies the object in a response to this process. `is_selected` is true if the selection admits the object; an
    /// object that leaves the selection is removed.
    pub(crate) fn apply_own_write(&mut self, item: Object, is_selected: bool) -> Deltas {
        let state = item.state();
        if is_selected {
            raise(&mut self.last_response, state.version());
        }
        if !self.is_new_own_write(&state) {
            return NO_DELTAS;
        }
        if is_selected {
            let lists = self.lists;
            raise(&mut self.highest, state.version());
            return self.put(item, lists);
        }
        let key = state.key();
        let was_selected = self.entries.get(&key).is_some() || self.tombstones.contains(&key);
        match state.version() {
            Some(version) if was_selected => {
                raise(&mut self.last_response, Some(version));
                self.delete_at(&key, version)
            }
            _ => NO_DELTAS,
        }
    }

    fn is_new_own_write(&self, state: &ObjectState<'_>) -> bool {
        if state.version().is_none() || self.unordered {
            return false;
        }
        match self.entries.get_by_state(state) {
            Some(entry) => is_older(entry.version(), state.version()),
            None => !self.has_reached(state.version()) && !self.tombstones.is_stale(state),
        }
    }

    fn has_reached(&self, version: Option<ResourceVersion<'_>>) -> bool {
        version.is_some() && version <= ResourceVersion::parse(&self.reached)
    }

    /// Applies a response that contains the last state of an object that no longer exists.
    ///
    /// The version of that state is the version of the deletion, unless the write removed the last finalizer: then it
    /// is an earlier version, which the watch may have reached already. The object is then removed by its uid.
    pub(crate) fn apply_own_deletion(&mut self, last: &ObjectState<'_>) -> Deltas {
        let key = last.key();
        raise(&mut self.last_response, last.version());
        let deltas = last.version().map_or(NO_DELTAS, |version| self.delete_at(&key, version));
        match last.uid {
            Some(uid) if matches!(deltas, [None, None]) => self.delete_uid(&key, uid),
            _ => deltas,
        }
    }

    /// Removes an object that this process deleted, or took out of the selection, at or before this version. Does
    /// nothing if the watch has reached the version or the cached state is newer.
    pub(crate) fn delete_at(&mut self, key: &Key, version: ResourceVersion<'_>) -> Deltas {
        let is_newer = |entry: &Entry| entry.version().is_none_or(|cached| cached > version);
        if self.unordered || self.has_reached(Some(version)) || self.entries.get(key).is_some_and(is_newer) {
            return NO_DELTAS;
        }
        self.tombstones.add_version(key, version);
        self.remove(key)
    }

    /// Removes the object of this uid, which this process deleted at an unknown version. A terminating object stays
    /// until the watch reports its deletion.
    pub(crate) fn delete_uid(&mut self, key: &Key, uid: &str) -> Deltas {
        let Some(entry) = self.entries.get(key) else { return NO_DELTAS };
        if self.unordered || entry.object.is_terminating() || entry.object.state().uid != Some(uid) {
            return NO_DELTAS;
        }
        let is_listed = entry.listed == self.lists;
        // A version from before the current list is not used: the list may come from a restored server with lower
        // versions.
        let last = entry.version().filter(|_| is_listed || entry.written == self.lists);
        self.tombstones.add_uid(key, uid, last, is_listed);
        self.remove(key)
    }

    /// Caches the object unconditionally. `written` is the number of the last list that had begun when this process
    /// wrote the object, or [`NOT_OWN_WRITE`].
    pub(crate) fn put(&mut self, new: Object, written: u32) -> Deltas {
        let state = new.state();
        self.tombstones.remove(&state);
        let listed = if written == NOT_OWN_WRITE { self.lists } else { NOT_LISTED };
        match self.entries.put(new.clone(), listed, written) {
            None => [Some(Delta::Added(new)), None],
            Some(old) if has_other_uid(old.state().uid, state.uid) => {
                [Some(Delta::Deleted(old)), Some(Delta::Added(new))]
            }
            Some(old) => [Some(Delta::Updated { old, new }), None],
        }
    }

    /// Removes the object of this key unconditionally.
    pub(crate) fn remove(&mut self, key: &Key) -> Deltas {
        [self.entries.remove(key).map(Delta::Deleted), None]
    }

    /// The number of own deletions that the watch has yet to report.
    #[cfg(test)]
    pub(crate) fn tombstones(&self) -> usize {
        self.tombstones.len()
    }

    /// The highest version of a response to an own write or read that the watch reports too. `None` before the first.
    pub(crate) fn last_response(&self) -> Option<&str> {
        Some(self.last_response.as_str()).filter(|version| !version.is_empty())
    }

    /// Returns true if the lists and watches have reported everything up to this version. A version that cannot be
    /// ordered counts as reported.
    pub(crate) fn has_all(&self, version: &str) -> bool {
        let version = ResourceVersion::parse(version);
        self.unordered || version.is_none() || self.has_reached(version)
    }

    /// The highest version seen since the last list. A server whose version is lower has been restored from a backup.
    pub(crate) fn highest(&self) -> &str {
        &self.highest
    }
}

fn has_other_uid(old: Option<&str>, new: Option<&str>) -> bool {
    old.is_some() && new.is_some() && old != new
}
