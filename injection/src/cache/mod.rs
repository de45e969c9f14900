//! The cache of an informer: the objects, the rules by which they change, and the handlers that are called.

mod delivery;
pub(crate) mod delta;
mod entries;
mod handlers;
mod listed;
mod preloaded;
mod store;
mod stores;
mod subscribing;
mod tombstones;
mod undecodable;
mod waiters;

use std::sync::Arc;

use kube::discovery::ApiResource;
use parking_lot::{Mutex, RwLock};
use reknit_apis::Key;

use self::delta::{Delta, Deltas};
use self::{delivery::notifying_of, handlers::Handlers, undecodable::Undecodable, waiters::Waiters};
pub use self::{
    delivery::{Update, is_initial},
    undecodable::DecodeError,
};
pub(crate) use self::{handlers::ChangeHandler, store::Store, stores::Stores};
use crate::{
    client::{Writers, WrittenState},
    fights::{FieldChange, Fights, Restored, Write, WriteRequest},
    informer::{
        cached::Cached, handle::Progress, key_event::KeyEvent, metrics::InformerMetrics, selection::Selection,
    },
    object::{Object, ObjectState, RawObject, ResponseState},
    pass::CurrentPass,
    recording::ListScope,
    redaction::Redaction,
};

/// The value of `is_deletion` for an object that does not come from the response to a deletion.
const NOT_A_DELETION: bool = false;

/// The cache of an informer. It applies the lists and watches of its reflector, the responses to this process's writes
/// and to its reads of one object, and the lists that read a written object back.
///
/// `stores` is locked only while it is read or changed, so handlers can read the cache. `handlers` stays locked until
/// all handlers of a change have returned, so all handlers see changes in the same order, and have seen an own write
/// when its request returns. `undecodable` is also locked only while it is read or changed, and never together with
/// `stores`.
///
/// Each state is decoded once on arrival, to find out whether decoding succeeds. The cache keeps only the encoded form,
/// and decodes it again on every read.
pub(crate) struct Cache<K> {
    pub(crate) name: String,
    pub(crate) kind: Arc<ApiResource>,
    pub(crate) selection: Selection,
    pub(crate) progress: Progress,
    pub(crate) waiters: Waiters,
    pub(crate) metrics: InformerMetrics,
    stores: RwLock<Stores>,
    undecodable: RwLock<Undecodable>,
    handlers: Mutex<Handlers<K>>,
    pub(crate) fights: Fights,
    redaction: Redaction,
    writers: Writers,
    /// True if a test provides the objects instead of a reflector. Then states are applied in the order of their
    /// arrival, whatever their versions, and a new handler is not called with the objects that are already cached.
    preloaded: bool,
}

impl<K: Cached> Cache<K> {
    pub(crate) fn new(
        name: String,
        kind: ApiResource,
        selection: Selection,
        metrics: InformerMetrics,
        writers: Writers,
        redaction: Redaction,
        preloaded: bool,
    ) -> Self {
        Self {
            name,
            kind: Arc::new(kind),
            progress: Progress::not_started(selection.parts().len(), metrics.unsynced()),
            waiters: Waiters::default(),
            stores: RwLock::new(Stores::of(&selection)),
            undecodable: RwLock::new(Undecodable::new(metrics.undecodable())),
            metrics,
            handlers: Mutex::default(),
            fights: Fights::new(redaction.clone()),
            redaction,
            writers,
            preloaded,
            selection,
        }
    }

    /// Records the time of a response to the reflector of a part.
    pub(crate) fn mark_response(&self, part: usize) {
        self.progress.mark_attempt(part);
        self.metrics.last_responses.record(part);
    }

    /// Reads the stores, which are locked for as long as `read` takes.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Stores) -> T) -> T {
        read(&self.stores.read())
    }

    /// Changes the store of a part of the selection, without calling handlers.
    fn change_part(&self, part: usize, change: impl FnOnce(&mut Store)) {
        self.stores.write().part_mut(part).map(change);
    }

    /// The object of this key, decoded; `None` if it is not cached.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        let object = self.object(key);
        self.record(|| (key, object.clone()));
        self.decode(&object?)
    }

    /// Returns true if an object of this key is cached.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.record(|| (key, self.object(key)));
        self.read(|stores| stores.get(key).is_some())
    }

    /// Returns the objects of a namespace, or of all.
    pub(crate) fn list(&self, namespace: Option<&str>) -> Vec<Object> {
        let objects = self.read(|stores| match namespace {
            Some(namespace) => stores.list_in(namespace).cloned().collect(),
            None => stores.all().cloned().collect::<Vec<_>>(),
        });
        self.record_list(namespace.map_or(ListScope::All, ListScope::Namespace), || &objects);
        objects
    }

    /// Adds the read of an object to the recording of the current pass, if it is recorded.
    fn record<'a>(&self, read: impl FnOnce() -> (&'a Key, Option<Object>)) {
        if let Some(recording) = CurrentPass::recording() {
            let (key, object) = read();
            recording.add(|reads| reads.add_object(&self.kind, K::metadata_api(), key, object.as_ref()));
        }
    }

    /// Adds the read of a list to the recording of the current pass, if it is recorded.
    pub(crate) fn record_list<A: AsRef<[Object]>>(&self, scope: ListScope<'_>, objects: impl FnOnce() -> A) {
        if let Some(recording) = CurrentPass::recording() {
            let (objects, selection) = (objects(), self.selection.to_string());
            let objects = objects.as_ref();
            recording.add(|reads| reads.add_list(&self.kind, K::metadata_api(), selection, scope, objects));
        }
    }

    /// The object of this key, or an error if its newest state cannot be decoded.
    pub(crate) fn newest(&self, key: &Key) -> Result<Option<Arc<K>>, DecodeError> {
        let error = self.undecodable.read().error(key);
        match error {
            Some(error) => {
                self.record(|| (key, self.undecodable.read().object(key)));
                Err(error)
            }
            None => Ok(self.get(key)),
        }
    }

    /// The JSON of the newest state of this key, if it cannot be decoded. It may be nested too deep for serde_json.
    pub(crate) fn undecodable_json(&self, key: &Key) -> Option<String> {
        self.undecodable.read().object(key)?.to_json(&self.kind).ok()
    }

    /// The JSON of this state of an object, with the fields that its type does not have. It may be nested too deep for
    /// serde_json. `None` if another state is cached.
    pub(crate) fn raw_json(&self, key: &Key, version: Option<&str>) -> Option<String> {
        let object = self.object(key).filter(|object| Some(object.state().resource_version) == version)?;
        object.to_json(&self.kind).ok()
    }

    /// Returns true if the newest state of this key cannot be decoded.
    pub(crate) fn is_undecodable(&self, key: &Key) -> bool {
        self.undecodable.read().contains(key)
    }

    /// At most this number of the keys whose newest states cannot be decoded, with the reasons.
    pub(crate) fn decode_errors(&self, limit: usize) -> Vec<(Key, String)> {
        self.undecodable.read().iter().take(limit).map(|(key, why)| (key.clone(), why.into())).collect()
    }

    /// Decodes a cached object. A failure is unexpected, since the object could be decoded when it arrived: it is
    /// logged, and the result is `None`.
    pub(crate) fn decode(&self, object: &Object) -> Option<Arc<K>> {
        let log = |error: &String| {
            tracing::error!(informer = self.name, key = %object.state().key(), error, "failed to decode an object");
        };
        object.decode_redacted(&self.kind, &self.redaction).map(Arc::new).inspect_err(log).ok()
    }

    /// The keys of all objects, including objects that cannot be decoded.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.record_list(ListScope::All, || self.objects());
        let mut keys: Vec<_> = self.read(|stores| stores.all().map(|object| object.state().key()).collect());
        let undecodable: Vec<_> = self.undecodable.read().iter().map(|(key, _)| key.clone()).collect();
        keys.extend(undecodable.into_iter().filter(|key| self.object(key).is_none()));
        keys
    }

    pub(crate) fn object(&self, key: &Key) -> Option<Object> {
        self.read(|stores| stores.get(key).map(|entry| entry.object.clone()))
    }

    pub(crate) fn objects(&self) -> Vec<Object> {
        self.read(|stores| stores.all().cloned().collect())
    }

    /// Returns true for an object that the API server reports although it is not selected.
    fn is_unselected(&self, raw: &RawObject<'_>) -> bool {
        self.selection.is_evaluated_here()
            && self.encode(raw).is_ok_and(|object| self.selection.admits(&object) == Some(false))
    }

    /// Applies an `ADDED` or `MODIFIED` event of the watch.
    pub(crate) fn apply_watched(&self, raw: &RawObject<'_>) {
        if self.is_unselected(raw) {
            return self.apply_deletion(raw);
        }
        self.fights.record_watched(&self.kind, raw, || self.encode(raw).ok());
        let state = raw.state();
        let is_stale = || {
            self.read(|stores| {
                stores.in_namespace(state.namespace).is_some_and(|store| store.is_stale(&state))
            })
        };
        if is_stale() {
            self.record_overtaken(&state);
            self.supersede_undecodable(raw);
        } else {
            match self.decode_raw(raw) {
                Ok((object, decoded)) => {
                    return self.update(state.namespace, Some(&decoded), |store| store.apply_watched(object));
                }
                Err(why) => self.add_undecodable(raw, &why, is_stale),
            }
        }
        // For a state that is neither stale nor undecodable, `Store::apply_watched` has advanced the version.
        if let Some(store) = self.stores.write().in_namespace_mut(state.namespace) {
            store.advance(state.version());
        }
    }

    /// Records a state that the watch reports although the cache has a later one, which may come from a write of
    /// this process.
    fn record_overtaken(&self, state: &ObjectState<'_>) {
        self.read(|stores| {
            let store = stores.in_namespace(state.namespace)?;
            let later = &store.entries.get_by_state(state)?.object;
            if !later.is_same_state(state) {
                let [state, later] = [state, &later.state()].map(|state| state.resource_version);
                self.writers.record_overtaken(WrittenState::version(state), WrittenState::version(later));
            }
            Some(())
        });
    }

    /// Applies a `DELETED` event of the watch.
    pub(crate) fn apply_deletion(&self, raw: &RawObject<'_>) {
        self.delete(raw, |store| store.apply_deletion(&raw.state()));
    }

    /// Applies a deletion, and removes the object's undecodable state unless that state is newer than the deletion.
    fn delete(&self, raw: &RawObject<'_>, deletion: impl FnOnce(&mut Store) -> Deltas) {
        let (handlers, key) = (self.handlers.lock(), raw.key());
        let was_undecodable = self.undecodable.write().supersede(&raw.state());
        let was_cached = self.object(&key).is_some();
        self.update_locked(&handlers, key.namespace.as_deref(), None, deletion);
        if was_undecodable {
            self.notify_resolved(&handlers, &key, was_cached);
        }
    }

    pub(crate) fn apply_bookmark(&self, part: usize, version: &str) {
        self.change_part(part, |store| store.apply_bookmark(version));
    }

    /// Applies a response to a request of this process. Returns false if the response contains an object of another
    /// Kind.
    pub(crate) fn apply_response(&self, response: &ResponseState<'_>) -> bool {
        match response {
            ResponseState::Object { raw, .. } if !raw.is_of(&self.kind) => return false,
            ResponseState::Object { raw, text, is_deletion } if self.preloaded => {
                self.apply_to_preloaded(raw, text, *is_deletion);
            }
            ResponseState::Item { raw, text } if self.preloaded => {
                self.apply_to_preloaded(raw, text, NOT_A_DELETION);
            }
            ResponseState::Deleted { key, .. } | ResponseState::Absent { key, .. } if self.preloaded => {
                self.remove(key)
            }
            ResponseState::Object { raw, is_deletion, .. } => self.apply_own_write(raw, *is_deletion),
            ResponseState::Item { raw, .. } => self.apply_own_write(raw, NOT_A_DELETION),
            ResponseState::Deleted { key, uid: Some(uid) } => {
                self.update(key.namespace.as_deref(), None, |store| store.delete_uid(key, uid))
            }
            ResponseState::Absent { key, version: Some(version) } => {
                self.update(key.namespace.as_deref(), None, |store| store.delete_at(key, *version));
            }
            ResponseState::Deleted { uid: None, .. } | ResponseState::Absent { version: None, .. } => {}
        }
        true
    }

    /// Applies the object in a response. If the object cannot be encoded or decoded, or only the API server can tell
    /// whether it is selected, it is left to the watch.
    fn apply_own_write(&self, raw: &RawObject<'_>, is_deletion: bool) {
        let Ok(object) = self.encode(raw) else { return };
        let Some(is_selected) = self.selection.admits(&object) else { return };
        if raw.is_gone(is_deletion) {
            return self.delete(raw, |store| store.apply_own_deletion(&raw.state()));
        }
        if let Ok(decoded) = object.decode(&self.kind).map(Arc::new) {
            self.update(raw.state().namespace, Some(&decoded), |store| {
                store.apply_own_write(object, is_selected)
            });
        }
    }

    /// Records a write by a pass, after its response was applied. Returns the field that it has restored in a
    /// [fight](crate::fights). `before` is the cached state when the write was sent.
    pub(crate) fn record_write(
        &self,
        controller: &Arc<str>,
        request: &WriteRequest,
        before: &Object,
        response: &RawObject<'_>,
    ) -> Option<Restored> {
        let Some(after) = &self.state_after(before, response) else {
            if before.is_same_state(&response.state()) {
                self.fights.end_unchanged(&before.state().key(), controller);
            }
            return None;
        };
        let write = Write { request, before, after, managed_fields: response.managed_fields() };
        self.fights.record_write(&self.kind, controller, &write)
    }

    /// Describes the change that a write has made, after its response was applied. `before` is the cached state when the
    /// write was sent.
    pub(crate) fn describe_change(
        &self,
        request: &WriteRequest,
        before: &Object,
        response: &RawObject<'_>,
    ) -> Option<FieldChange> {
        let (after, managed_fields) = (&self.state_after(before, response)?, response.managed_fields());
        self.fights.describe_change(&self.kind, &Write { request, before, after, managed_fields })
    }

    /// The state to which a write has led. `None` if it has changed nothing, or if a newer state is cached.
    fn state_after(&self, before: &Object, response: &RawObject<'_>) -> Option<Object> {
        let after = self.object(&before.state().key())?;
        let is_answer = after.is_same_state(&response.state()); // the response of a subresource has another Kind
        let is_changed = !after.is_same_state(&before.state());
        (is_answer && is_changed).then_some(after)
    }

    fn encode(&self, raw: &RawObject<'_>) -> Result<Object, String> {
        raw.encode::<K>(&self.kind, self.selection.keeps_managed_fields())
    }

    fn decode_raw(&self, raw: &RawObject<'_>) -> Result<(Object, Arc<K>), String> {
        let object = self.encode(raw)?;
        let decoded = object.decode_redacted(&self.kind, &self.redaction)?;
        Ok((object, Arc::new(decoded)))
    }

    /// Changes the store of a namespace and calls the handlers. `decoded` is the new object; `None` if the change only
    /// deletes. Does nothing if the namespace is not selected.
    fn update(
        &self,
        namespace: Option<&str>,
        decoded: Option<&Arc<K>>,
        change: impl FnOnce(&mut Store) -> Deltas,
    ) {
        self.update_locked(&self.handlers.lock(), namespace, decoded, change);
    }

    fn update_locked(
        &self,
        handlers: &Handlers<K>,
        namespace: Option<&str>,
        decoded: Option<&Arc<K>>,
        change: impl FnOnce(&mut Store) -> Deltas,
    ) {
        let deltas = self.stores.write().in_namespace_mut(namespace).map(change).unwrap_or_default();
        self.notify_locked(handlers, decoded, deltas);
    }

    fn notify_locked(
        &self,
        handlers: &Handlers<K>,
        decoded: Option<&Arc<K>>,
        deltas: impl IntoIterator<Item = Option<Delta>>,
    ) {
        for delta in deltas.into_iter().flatten() {
            let (state, [_, new]) = (delta.latest().state(), delta.objects());
            // Handlers can call `newest`, which must not return the error of an older state.
            match new {
                Some(_) => self.undecodable.write().supersede(&state),
                None => self.undecodable.write().remove(&state.key()),
            };
            let (objects, bytes) = self.read(|stores| (stores.len(), stores.bytes()));
            self.metrics.set_size(objects, bytes);
            let notify = || handlers.notify(&delta, decoded.filter(|_| new.is_some()), &self.kind);
            notifying_of(delta.objects(), notify);
            self.waiters.wake(|| state.key());
        }
    }

    /// Records a state that cannot be decoded, and calls the handlers once for each version. Ignores a stale state.
    ///
    /// `is_stale` is called while the handlers are locked, so that no object can change: a newer own write may have
    /// been applied while the object was decoded.
    fn add_undecodable(&self, raw: &RawObject<'_>, why: &str, is_stale: impl FnOnce() -> bool) {
        let (handlers, object) = (self.handlers.lock(), self.encode(raw).ok());
        if is_stale() || !self.undecodable.write().add(raw, object.clone(), why) {
            return;
        }
        let key = raw.key();
        tracing::error!(informer = self.name, %key, error = why, "failed to decode an object");
        handlers.notify_undecodable(&key, why);
        handlers.notify_key_event(&KeyEvent::undecodable(key, object.as_ref()));
    }

    /// Handles a stale state, which does not change the store: removes the object's undecodable state unless it is
    /// newer than the stale one.
    fn supersede_undecodable(&self, raw: &RawObject<'_>) {
        if self.undecodable.read().is_empty() {
            return;
        }
        let (handlers, key) = (self.handlers.lock(), raw.key());
        if self.undecodable.write().supersede(&raw.state()) {
            self.notify_resolved(&handlers, &key, self.object(&key).is_some());
        }
    }

    /// Calls the key event handlers for a key whose undecodable state was removed, unless the deletion of its cached
    /// object has already called them.
    fn notify_resolved(&self, handlers: &Handlers<K>, key: &Key, was_cached: bool) {
        match (was_cached, self.object(key)) {
            (true, None) => {} // called with the deletion of the cached object
            (_, Some(object)) => handlers.notify_key_event(&KeyEvent::cached(&object)),
            (false, None) => handlers.notify_key_event(&KeyEvent::deleted(key.clone())),
        }
    }
}
