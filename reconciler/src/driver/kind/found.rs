//! Finds the object of a pass: in the cache, or outside the selection if it is to be finalized.

use kube::{Resource, api::ObjectMeta};
use reknit_apis::Key;
use reknit_injection::{
    DecodeError,
    internal::{can_be_left, exists, selection, undecodable_json},
};

use super::{
    KindDriver,
    reports::{failure_event, object_reference},
};
use crate::{
    Error, Outcome, ReconcileKind, Result, ResultExt, driver::PassMode, limits::catch_panic,
    readable::Readable,
};

/// The object of a pass, or the reason why there is none to reconcile.
pub(super) enum Found<K> {
    Object(Readable<K>),
    /// The object exists, but not even its spec can be decoded.
    Undecodable(DecodeError),
    /// The object exists outside the selection, and is to be released.
    Left(Readable<K>),
    /// The object exists outside the selection, and the controller has no obligation to it.
    Outside,
    Gone,
}

impl<R: ReconcileKind> KindDriver<R> {
    /// Finds the object in the cache.
    pub(super) fn find(&self, key: &Key) -> Found<R::Kind> {
        match self.read_cached(key) {
            Ok(None) => Found::Gone,
            Ok(Some(object)) => {
                if object.unreadable_status.is_some()
                    && let Err(error) = self.informer.newest(key)
                {
                    tracing::warn!(%key, %error, "the status cannot be decoded, and counts as absent: the next write replaces it");
                }
                Found::Object(object)
            }
            Err(error) => Found::Undecodable(error),
        }
    }

    /// The newest state of the object in the cache.
    ///
    /// # Errors
    ///
    /// Not even the spec of the object can be decoded.
    pub(super) fn read_cached(&self, key: &Key) -> Result<Option<Readable<R::Kind>>, DecodeError> {
        let error = match self.informer.newest(key) {
            Ok(found) => return Ok(found.map(Readable::from)),
            Err(error) => error,
        };
        let json = undecodable_json(&self.informer, key);
        let readable = json.and_then(|json| catch_panic(key, || Readable::decode(&json).ok())?);
        readable.map(Some).ok_or(error)
    }

    /// Finds an object that is not in the selection: reads it if it is to be finalized. If it `matters` that the object is
    /// gone, or the deletion is observed, asks the API server, unless no object can leave the selection.
    pub(super) async fn find_outside(
        &self,
        key: &Key,
        mode: PassMode,
        matters: bool,
    ) -> Result<Found<R::Kind>> {
        if let Some(outside) = self.outside.as_ref().and_then(|outside| outside.get(key)) {
            let is_due = self.finalizer.is_due(&outside.metadata);
            if mode == PassMode::Observing || !(is_due || self.is_to_release(&outside.metadata)) {
                return Ok(Found::Outside);
            }
            return Ok(match self.read_due(key, &outside.metadata).await? {
                Found::Object(object) if !self.finalizer.is_due(object.object.meta()) => Found::Left(object),
                found => found,
            });
        }
        let asks =
            can_be_left(selection(&self.informer)) && (matters || self.deletion_observer(mode).is_some());
        if asks && self.client.get_meta(key).await.context("failed to read the object")?.is_some() {
            return Ok(Found::Outside);
        }
        Ok(Found::Gone)
    }

    /// Reads an object outside the selection that is to be finalized. Records an event for a failure.
    async fn read_due(&self, key: &Key, meta: &ObjectMeta) -> Result<Found<R::Kind>> {
        let read = match self.client.get(key).await {
            // Only a change of the object can help.
            Ok(found) => found.map(|json| Readable::decode(json.get())).transpose().permanent(),
            Err(error) => Err(Error::from(error)),
        };
        let read = read.context("failed to read the object, which waits for its finalizer");
        if let Err(error) = &read {
            let reference = object_reference::<R::Kind>(key, meta.uid.clone());
            self.recorder.record_at(reference, failure_event(error));
        }
        Ok(read?.map_or(Found::Gone, Found::Object))
    }

    /// Returns true if an object that this controller does not reconcile any more carries its finalizer, and is not being
    /// deleted.
    pub(super) fn is_to_release(&self, meta: &ObjectMeta) -> bool {
        self.roles.release.is_some() && meta.deletion_timestamp.is_none() && self.finalizer.is_on(meta)
    }

    /// Drops a key that no object of the Kind can have. The object of such a key shows that the installed definition has
    /// another scope than the program: the pass fails, so that its event is recorded at the object.
    pub(super) fn drop_malformed(&self, key: &Key, problem: String) -> Result<Outcome> {
        if !key.name.is_empty() && self.is_known(key) {
            let problem = format!(
                "{problem}: the installed CustomResourceDefinition has another scope than this program; install the one that \
                 the program prints"
            );
            return Err(problem).permanent();
        }
        tracing::error!(%key, error = problem, "a malformed key is dropped");
        Ok(Outcome::skip())
    }

    /// Returns true if the object exists, as far as the caches know.
    pub(super) fn is_known(&self, key: &Key) -> bool {
        exists(&self.informer, key) || self.outside.as_ref().is_some_and(|outside| outside.contains(key))
    }
}
