//! Objects whose spec cannot be decoded.

use kube::api::ObjectMeta;
use reknit_apis::Key;
use reknit_injection::{
    DecodeError,
    internal::{decode_object, undecodable_json},
};

use super::{KindDriver, reports::object_reference};
use crate::{Event, Outcome, ReconcileKind, Result, driver::PassMode, object_client::OnlyMetadata};

impl<R: ReconcileKind> KindDriver<R> {
    /// Skips an object whose spec cannot be decoded. Reports it, unless it is of another class: its program can perhaps
    /// decode it.
    pub(super) async fn process_undecodable(
        &self,
        key: &Key,
        error: &DecodeError,
        mode: PassMode,
    ) -> Result<Outcome> {
        let json = undecodable_json(&self.informer, key).unwrap_or_default();
        let OnlyMetadata { metadata: meta } = decode_object(&json).unwrap_or_default();
        let is_ours = match self.finalizer.is_due(&meta) {
            true => mode == PassMode::Observing || self.is_placed_here(key, &meta).await?,
            false => self.is_of_class(&meta) || self.is_to_release(&meta),
        };
        if is_ours {
            return Ok(self.skip_undecodable(key, &meta, error, mode));
        }
        self.forget(key);
        self.observe_absence(key, None).await
    }

    /// Reports an object whose spec cannot be decoded. The cached state, if any, is stale.
    fn skip_undecodable(&self, key: &Key, meta: &ObjectMeta, error: &DecodeError, mode: PassMode) -> Outcome {
        let message = match self.finalizer.is_due(meta) {
            true => format!(
                "{error}; its deletion waits: make the object decodable, or start a version of the controller that can \
                 decode it"
            ),
            false => format!(
                "{error}; correct the field, or start a version of the controller that can decode the object"
            ),
        };
        tracing::warn!(error = message, "the object is skipped until it can be decoded");
        self.is_paused(key, meta, mode);
        if mode == PassMode::Leading {
            let reference = object_reference::<R::Kind>(key, error.uid().map(Into::into));
            self.recorder.record_at(reference, Event::warning("DecodeFailed", message));
        }
        Outcome::skip()
    }
}
