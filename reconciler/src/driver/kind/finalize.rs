//! Finalizes an object, and updates its finalizers.

use std::sync::Arc;

use kube::{Resource, api::ObjectMeta};
use reknit_apis::{Key, Kind};
use reknit_injection::internal::exists;

use super::{FinalizeFn, Found, KindDriver, ReleaseFn, Stored, defaulted, is_waiting, with_write_error};
use crate::{
    Error, Event, Outcome, ReconcileKind, Result, ResultExt, error::describe, finalizer::Finalizer,
    kind_client::WriteMeta, object_client::status_code, readable::Readable,
};

impl<R: ReconcileKind> KindDriver<R> {
    /// Returns true unless an object to be finalized is of another class, whose program has placed the finalizer.
    pub(super) async fn is_placed_here(&self, key: &Key, meta: &ObjectMeta) -> Result<bool> {
        let Some(class) = self.class_of(meta).filter(|_| !self.is_of_class(meta)) else {
            return Ok(true);
        };
        if !self.finalizer.is_default() {
            return Ok(true);
        }
        let stored = self.client.get_meta(key).await.context("failed to read the object")?;
        let is_other =
            stored.is_some_and(|meta| self.finalizer.is_of_other_program(&meta, self.client.manager()));
        if is_other {
            tracing::info!(
                class,
                finalizer = self.finalizer.name(),
                "the deleted object is left to the program of its class, which has placed the finalizer: if there is no \
                 such program, set another finalizer by `.finalizer(…)`, with this one as a former one"
            );
        }
        Ok(!is_other)
    }

    /// Reports a deleted object that was not finalized, if the controller would have finalized it: usually another client has
    /// removed the finalizer. `last` is the last state that carried it.
    pub(super) fn report_lost_finalizer(&self, key: &Key, found: &Found<R::Kind>, last: &R::Kind) {
        let is_still_due = match found {
            Found::Gone => false,
            Found::Object(found) | Found::Left(found) => {
                found.object.meta().uid == last.meta().uid && self.finalizer.is_due(found.object.meta())
            }
            Found::Undecodable(_) | Found::Outside => true,
        };
        let Some(name) = self.finalizer.name().filter(|_| !is_still_due) else { return };
        if self.is_of_class(last.meta()) && self.is_admitted(key, last) {
            let message = match last.meta().deletion_timestamp {
                Some(_) => format!(
                    "another client removed the finalizer {name} before this controller had finalized the object: if \
                     another program uses the same finalizer, set another one by `.finalizer(…)`"
                ),
                None => format!(
                    "the object was deleted although it carried the finalizer {name}, and was not finalized: its deletion \
                     and the finalizer reached the API server at the same moment, or another client removed the finalizer \
                     while no watch was open. Remove by hand what has been created for it elsewhere"
                ),
            };
            tracing::warn!("{message}");
            self.recorder.record(last, Event::warning("FinalizerLost", message));
        }
    }

    /// Finalizes and writes the status. If finalizing is done, removes the finalizer, unless another client has changed what
    /// a user asks for. If removing the finalizer deletes the object, no status is written. A status that the API server
    /// refuses, or that conflicts with another client's, does not keep the finalizer.
    pub(super) async fn finalize(
        &self,
        finalize: FinalizeFn<R>,
        found: &Readable<R::Kind>,
    ) -> Result<Outcome> {
        let Readable { object, unreadable_status } = found;
        let mut status = object.read_status().cloned().unwrap_or_default();
        let result = finalize(&self.reconciler, &defaulted(object.clone()), &mut status).await;
        if is_waiting(&result) {
            return result;
        }
        self.record_result(&**object, &result);
        let is_done = result.as_ref().is_ok_and(Outcome::is_done);
        let stored = Stored { status: object.read_status(), unreadable: unreadable_status.as_deref() };
        let written = match is_done && self.finalizer()?.is_last_on(object.meta()) {
            true => Ok(Some(object.meta().into())),
            false => self.write_status(object, stored, &mut status).await,
        };
        match written {
            // Nothing is left to clean up. A status that is not written must not keep the object.
            Err(error) if is_done && (error.is_refused() || error.is_conflict()) => {
                self.remove_finalizer(object, object.meta().into()).await.and(result)
            }
            Err(error) => Err(with_write_error(result, error)),
            // Without a version, another client has changed the object: the removal finds out whether it asks for the same.
            Ok(newest) if is_done => self
                .remove_finalizer(object, newest.unwrap_or_else(|| object.meta().into()))
                .await
                .and(result),
            Ok(_) => result,
        }
    }

    /// Cleans up after an object that has left, and removes the finalizer once that is done.
    pub(super) async fn release(&self, release: ReleaseFn<R>, object: &Arc<R::Kind>) -> Result<Outcome> {
        let result = release(&self.reconciler, &defaulted(object.clone())).await;
        self.record_result(&**object, &result);
        match result.as_ref().is_ok_and(Outcome::is_done) {
            true => self.remove_finalizer(object, object.meta().into()).await.and(result),
            false => result,
        }
    }

    pub(super) fn finalizer(&self) -> Result<&Finalizer> {
        self.finalizer.check().map(|()| &self.finalizer)
    }

    /// Returns the object with its new finalizers, or `None` if it is gone.
    pub(super) async fn update_finalizers(&self, object: &R::Kind) -> Result<Option<Readable<R::Kind>>> {
        match self.finalizer()?.update(&self.client, object).await {
            Ok(None) => Ok(None),
            Ok(Some(updated)) if self.finalizer.is_missing_on(updated.object.meta()) => {
                Err(Error::from(format!(
                    "the API server did not store the finalizer {:?}: an admission webhook may remove it",
                    self.finalizer.name().unwrap_or_default()
                )))
            }
            updated => self.record_finalizer(object, updated),
        }
    }

    pub(super) async fn remove_finalizer(&self, object: &Arc<R::Kind>, newest: WriteMeta) -> Result<()> {
        let key = Key::of(&**object);
        // Nothing observes the deletion of an object outside the selection.
        if exists(&self.informer, &key) {
            self.lost_finalizers.begin_removal(key);
        }
        let mut object = R::Kind::clone(object);
        let meta = object.meta_mut();
        (meta.resource_version, meta.finalizers) = (newest.resource_version, newest.finalizers);
        let removed = self.finalizer()?.remove(&self.client, &object).await;
        self.record_finalizer(&object, removed)
    }

    fn record_finalizer<T>(&self, object: &R::Kind, result: kube::Result<T>) -> Result<T> {
        let name = Key::of(object).name;
        match &result {
            Ok(_) => self
                .recorder
                .record(object, Event::normal("FinalizerUpdate", format!("Updated {name:?} finalizers"))),
            Err(error) if status_code(error) == Some(409) => {}
            Err(error) => {
                let message = format!("Failed to update finalizers for {name:?}: {}", describe(error));
                self.recorder.record(object, Event::warning("FinalizerUpdateFailed", message));
            }
        }
        result.context(format_args!("failed to update finalizers for {name:?}"))
    }
}
