//! What comes into a cache: lists, watch events, the answers to own writes, and objects given by hand.

use kube::core::ObjectMeta;
use reknit_apis::Key;
use serde_json::Value;

use crate::{
    cache::Cache,
    informer::Cached,
    raw::{Incoming, Raw},
    store::News,
};

/// What an event of a watch says of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// `ADDED` and `MODIFIED`.
    There,
    Deleted,
}

impl<K: Cached> Cache<K> {
    pub(crate) fn list_begins(&self) {
        self.undecodable(|all| all.list_begins());
        self.write(|store| store.list_begins());
    }

    pub(crate) fn listed(&self, raw: &Raw<'_>) {
        if self.write(|store| store.knows_listed(&raw.state())) {
            return;
        }
        if let Some(item) = self.decode(raw) {
            self.change(|store| store.listed(item));
        }
    }

    pub(crate) fn list_ends(&self, version: &str) {
        self.undecodable(|all| all.list_ends());
        self.change(|store| {
            let removed = store.list_ends(version);
            removed.into_iter().map(|last| Some(News::Deleted { last }))
        });
        self.progress.complete();
    }

    /// The resource is no longer served, and its objects went with it.
    pub(crate) fn removed(&self, why: &str) {
        self.progress.lost(why);
        self.undecodable(|all| all.list_ends());
        self.change(|store| {
            let removed = store.table.retain(|_| false);
            removed.into_iter().map(|last| Some(News::Deleted { last }))
        });
    }

    pub(crate) fn watched(&self, event: Event, raw: &Raw<'_>) {
        if event == Event::Deleted {
            self.undecodable(|all| all.forget(|| raw.key()));
            return self.change(|store| store.deleted(&raw.state()));
        }
        if self.read(|store| store.knows_watched(&raw.state())) {
            self.undecodable(|all| all.superseded(raw));
            return self.write(|store| store.passed(raw.state().version()));
        }
        match self.decode(raw) {
            Some(item) => self.change(|store| store.watched(item)),
            None => self.write(|store| store.passed(raw.state().version())),
        }
    }

    pub(crate) fn bookmark(&self, version: &str) {
        self.write(|store| store.bookmark(version));
    }

    /// The answer to a write of this process. `deleting` says that it was a deletion. Whether it is of this Kind.
    pub(crate) fn wrote(&self, raw: &Raw<'_>, deleting: bool) -> bool {
        let ours = raw.is_of(&self.kind);
        if ours {
            self.wrote_ours(raw, deleting);
        }
        ours
    }

    fn wrote_ours(&self, raw: &Raw<'_>, deleting: bool) {
        let Ok(item) = raw.decode::<K>(&self.kind, self.selection.keeps_managed_fields()) else { return };
        self.undecodable(|all| all.superseded(raw));
        let meta = item.object.meta();
        let Some(admitted) = self.selection.admits(meta) else { return };
        if is_gone(meta, deleting) {
            let key = raw.key();
            return self.change(|store| match raw.state().version() {
                Some(version) => store.removed(&key, version),
                None => [None, None],
            });
        }
        self.change(|store| store.wrote(item, admitted));
    }

    /// The answer to a deletion by this process that names the object's uid, and says that it is gone.
    pub(crate) fn erased(&self, key: &Key, uid: &str) {
        self.change(|store| store.erased(key, uid));
    }

    /// By hand: what is given is held, if it is of the selection.
    pub(crate) fn apply(&self, item: Incoming<K>) {
        let admitted = self.selection.admits(item.object.meta()).unwrap_or(true);
        self.change(|store| {
            if admitted { store.put(item, 0) } else { store.remove(&item.record.packed().state().key()) }
        });
    }

    /// An object of a preloaded informer, or the answer to a write where nothing watches.
    pub(crate) fn given(&self, object: &Value, deleting: bool) -> bool {
        let text = object.to_string();
        let Ok(raw) = Raw::read(&text) else { return false };
        let ours = raw.is_of(&self.kind);
        if ours {
            self.given_ours(object, &raw, deleting);
        }
        ours
    }

    fn given_ours(&self, object: &Value, raw: &Raw<'_>, deleting: bool) {
        let Some(item) = self.decode(raw) else { return };
        let meta = item.object.meta();
        let admitted = self.selection.admits(meta) != Some(false) && self.selection.admits_json(object);
        if admitted && !is_gone(meta, deleting) {
            self.change(|store| store.put(item, 0));
        } else {
            self.forget(&raw.key());
        }
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.change(|store| store.remove(key));
    }
}

/// Whether an object in an answer is no longer there. A deletion answers with the object as it was where nothing
/// holds it back; an update that takes away the last finalizer answers with an object that has just been deleted.
/// (A namespace, whose finalizers are in its spec, has no grace period.)
fn is_gone(meta: &ObjectMeta, deleting: bool) -> bool {
    let held_back = meta.finalizers.as_ref().is_some_and(|all| !all.is_empty());
    match meta.deletion_timestamp {
        None => deleting,
        Some(_) => !held_back && meta.deletion_grace_period_seconds == Some(0),
    }
}
