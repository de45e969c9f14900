//! What comes into a cache: lists, watch events, the answers to own writes, and objects given by hand.

use std::sync::Arc;

use reknit_apis::Key;
use serde_json::Value;

use crate::{
    cache::Cache, extensions::StatusWrite, informer::Cached, raw::Raw, record::Record, store::News,
    version::Version,
};

/// What an event of a watch says of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// `ADDED` and `MODIFIED`.
    There,
    Deleted,
}

/// What an object is the answer to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnswerTo {
    Deletion,
    Status(StatusWrite),
    /// Another write, or a read.
    Other,
}

impl AnswerTo {
    pub(crate) fn is_deletion(self) -> bool {
        matches!(self, Self::Deletion)
    }
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
        if let Some((record, object)) = self.accept(raw) {
            self.change_to(object, |store| store.listed(record));
        }
    }

    pub(crate) fn list_ends(&self, version: &str) {
        let refused = self.undecodable(|all| all.list_ends());
        let vanished = self.of_these_unheld(refused);
        self.change(|store| {
            let removed = store.list_ends(version);
            removed.into_iter().map(|last| Some(News::Deleted { last }))
        });
        self.vanished(&vanished);
        self.progress.complete();
    }

    pub(crate) fn watched(&self, event: Event, raw: &Raw<'_>) {
        if event == Event::Deleted {
            return self.watched_deletion(raw);
        }
        if self.read(|store| store.knows_watched(&raw.state())) {
            self.undecodable(|all| all.superseded(&raw.state()));
            return self.write(|store| store.passed(raw.state().version()));
        }
        match self.accept(raw) {
            Some((record, object)) => self.change_to(object, |store| store.watched(record)),
            None => self.write(|store| store.passed(raw.state().version())),
        }
    }

    fn watched_deletion(&self, raw: &Raw<'_>) {
        let refused = self.undecodable(|all| all.forget(|| raw.key()));
        let vanished = self.of_these_unheld(refused.then(|| raw.key()));
        self.change(|store| store.deleted(&raw.state()));
        self.vanished(&vanished);
    }

    fn of_these_unheld(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
        keys.into_iter().filter(|key| self.read(|store| store.table.get(key).is_none())).collect()
    }

    pub(crate) fn bookmark(&self, version: &str) {
        self.write(|store| store.bookmark(version));
    }

    /// The answer to a write of this process, and its text. Whether it is of this Kind.
    pub(crate) fn wrote(&self, raw: &Raw<'_>, text: &str, request: AnswerTo) -> bool {
        let is_of = raw.is_of(&self.kind);
        if is_of {
            self.answered(raw, text, request);
        }
        is_of
    }

    /// An item of a list that was read after a write. (Those of a built-in Kind do not say what they are.)
    pub(crate) fn found(&self, raw: &Raw<'_>, text: &str) {
        self.answered(raw, text, AnswerTo::Other);
    }

    fn answered(&self, raw: &Raw<'_>, text: &str, request: AnswerTo) {
        if self.follows {
            self.wrote_ours(raw, request);
        } else {
            self.given(raw, text, request.is_deletion());
        }
    }

    /// What cannot be held is left to the watch, which tells of it.
    fn wrote_ours(&self, raw: &Raw<'_>, request: AnswerTo) -> Option<()> {
        let mut record = self.pack(raw).ok()?;
        let admitted = self.selection.admits(record.packed())?;
        if raw.is_gone(request.is_deletion()) {
            self.change(|store| store.ended(&raw.state()));
            return None;
        }
        let object = match request {
            AnswerTo::Status(write)
                if !self.decodes(raw) && raw.status().is_some_and(|s| write.leaves_a::<K>(s)) =>
            {
                record.decodes();
                None
            }
            _ => self.decoded(raw, &mut record).ok()?,
        };
        self.change_to(object, |store| store.wrote(record, admitted));
        Some(())
    }

    /// Such a list, of this version, does not hold the object.
    pub(crate) fn gone_by(&self, key: &Key, version: &str) {
        match Version::parse(version) {
            _ if !self.follows => self.forget(key),
            Some(version) => self.change(|store| store.removed(key, version)),
            None => {}
        }
    }

    /// The answer to a deletion by this process says that the object is gone, and may name its uid.
    pub(crate) fn erased(&self, key: &Key, uid: Option<&str>) {
        match uid {
            _ if !self.follows => self.forget(key),
            Some(uid) => self.change(|store| store.erased(key, uid)),
            None => {}
        }
    }

    /// By hand: what is given is held, if it is of the selection.
    pub(crate) fn apply(&self, record: Record, object: Arc<K>) {
        let admitted = self.selection.admits(record.packed()).unwrap_or(true);
        self.change_to(Some(object), |store| {
            if admitted { store.put(record, 0) } else { store.remove(&record.packed().state().key()) }
        });
    }

    /// Of what a test gives to all informers, each holds its own.
    pub(crate) fn preload(&self, object: &Value) {
        let text = object.to_string();
        if let Ok(raw) = Raw::read(&text)
            && raw.is_of(&self.kind)
        {
            self.given(&raw, &text, false);
        }
    }

    /// Where nothing is followed, the latest that is given counts.
    fn given(&self, raw: &Raw<'_>, text: &str, deleting: bool) {
        if raw.is_gone(deleting) {
            return self.forget(&raw.key());
        }
        let Some((record, decoded)) = self.accept(raw) else { return };
        let fields = serde_json::from_str(text).unwrap_or_default();
        if self.selection.admits(record.packed()) != Some(false) && self.selection.admits_json(&fields) {
            self.change_to(decoded, |store| store.put(record, 0));
        } else {
            self.forget(&raw.key());
        }
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.undecodable(|all| all.forget(|| key.clone()));
        self.change(|store| store.remove(key));
    }

    /// What the list or the watch tells, as it will be held, and the object where it was decoded; none where it cannot be
    /// decoded, and those who want to know that have been told.
    fn accept(&self, raw: &Raw<'_>) -> Option<(Record, Option<Arc<K>>)> {
        let mut record = self.pack(raw).map_err(|why| self.refuse(raw, None, &why)).ok()?;
        let object =
            self.decoded(raw, &mut record).map_err(|why| self.refuse(raw, Some(&record), &why)).ok()?;
        Some((record, object))
    }

    fn pack(&self, raw: &Raw<'_>) -> Result<Record, String> {
        raw.pack::<K>(&self.kind, self.selection.keeps_managed_fields())
    }

    /// Decodes it where that must not wait until somebody reads it: where it replaces a state, which stays if it cannot
    /// be decoded, and where somebody is told of objects.
    fn decoded(&self, raw: &Raw<'_>, record: &mut Record) -> Result<Option<Arc<K>>, String> {
        let replaces = || self.read(|store| store.table.namesake(&raw.state()).is_some());
        if !(self.decodes(raw) || replaces()) {
            return Ok(None);
        }
        let object = record.packed().decode(&self.kind)?;
        record.decodes();
        Ok(Some(Arc::new(object)))
    }
}
