//! The lists of a reflector: what they contain is cached, and what they do not contain is removed.

use reknit_apis::Key;

use super::{Cache, delivery::notifying, delta::Delta, store::Store};
use crate::{
    informer::{cached::Cached, handle::InformerState},
    object::{Object, RawObject},
};

impl<K: Cached> Cache<K> {
    /// Starts a list of one [part](Selection::parts) of the selection.
    pub(crate) fn start_list(&self, part: usize) {
        self.undecodable.write().start_list(|key| self.is_in_part(key, part));
        self.change_part(part, Store::start_list);
    }

    fn is_in_part(&self, key: &Key, part: usize) -> bool {
        self.selection.part_of(key.namespace.as_deref()) == Some(part)
    }

    /// Applies an item of the current list.
    pub(crate) fn apply_listed(&self, raw: &RawObject<'_>) {
        let state = raw.state();
        if self.is_unselected(raw) {
            return; // the end of the list removes it
        }
        // Called before the item is decoded: if decoding fails, the object must not count as absent from the list.
        let mark_listed = || {
            let mut stores = self.stores.write();
            stores
                .in_namespace_mut(state.namespace)
                .is_some_and(|store| store.mark_listed(&state, |cached| self.has_content_of(cached, raw)))
        };
        let is_stale = mark_listed();
        if is_stale {
            return;
        }
        notifying(!self.was_listed(state.namespace), || match self.decode_raw(raw) {
            Ok((object, decoded)) => {
                self.update(state.namespace, Some(&decoded), |store| store.apply_listed(object))
            }
            Err(why) => self.add_undecodable(raw, &why, mark_listed),
        });
    }

    /// Returns true if the cached object has the content of the item. The response to an own write may have the fields in
    /// another order than a list, so values are compared if the texts differ.
    fn has_content_of(&self, cached: &Object, raw: &RawObject<'_>) -> bool {
        let has_value_of = |item: &Object| {
            cached.to_value(&self.kind).is_some_and(|value| item.to_value(&self.kind) == Some(value))
        };
        raw.is_encoded_as::<K>(cached, self.selection.keeps_managed_fields())
            || self.encode(raw).is_ok_and(|item| has_value_of(&item))
    }

    /// Returns true if a list of the namespace has ended.
    fn was_listed(&self, namespace: Option<&str>) -> bool {
        match self.progress.state(self.selection.part_of(namespace)) {
            InformerState::Synced { .. } => true,
            InformerState::Unavailable { was_synced, .. } => was_synced,
            InformerState::NotStarted | InformerState::Waiting { .. } => false,
        }
    }

    /// Ends the current list of a part: removes the objects that the list did not contain, and marks the part as
    /// synced.
    pub(crate) fn finish_list(&self, part: usize, version: &str) {
        let handlers = self.handlers.lock();
        let unlisted = self.undecodable.write().finish_list(|key| self.is_in_part(key, part));
        let unlisted: Vec<_> = unlisted.into_iter().map(|key| (self.object(&key).is_some(), key)).collect();
        let deleted = self.stores.write().part_mut(part).map(|store| store.finish_list(version));
        let deltas = deleted.into_iter().flatten().map(|last| Some(Delta::Deleted(last)));
        self.notify_locked(&handlers, None, deltas);
        unlisted.iter().for_each(|(was_cached, key)| self.notify_resolved(&handlers, key, *was_cached));
        drop(handlers);
        self.progress.mark_synced(part);
    }
}
