//! A cache whose objects a test provides instead of a reflector.

use std::sync::Arc;

use reknit_apis::Key;
use serde_json::Value;

use super::{Cache, NOT_A_DELETION, store::NOT_OWN_WRITE};
use crate::{
    informer::cached::Cached,
    object::{Object, RawObject},
    shallow::decode_object,
};

impl<K: Cached> Cache<K> {
    /// Inserts one of the objects with which a test preloads each new informer. Ignores objects of other Kinds.
    pub(crate) fn preload(&self, object: &Value) {
        let text = object.to_string();
        if let Ok(raw) = RawObject::scan_text(&text)
            && raw.is_of(&self.kind)
        {
            self.apply_to_preloaded(&raw, &text, NOT_A_DELETION);
        }
    }

    /// Applies an object that a test provides, or that a response contains, to a preloaded cache, whatever its version:
    /// caches it, or records that it cannot be decoded, or removes it if it is gone or not selected.
    pub(super) fn apply_to_preloaded(&self, raw: &RawObject<'_>, text: &str, is_deletion: bool) {
        if raw.is_gone(is_deletion) {
            return self.remove(&raw.key());
        }
        if self.object(&raw.key()).is_some_and(|cached| cached.is_same_state(&raw.state())) {
            return; // the response to a read
        }
        let (object, decoded) = match self.decode_raw(raw) {
            Ok(object_and_decoded) => object_and_decoded,
            Err(why) => {
                let is_stale = || false;
                return self.add_undecodable(raw, &why, is_stale);
            }
        };
        let json = decode_object(text).unwrap_or_default();
        if self.selection.admits(&object) != Some(false) && self.selection.admits_fields(&json) {
            self.update(raw.state().namespace, Some(&decoded), |store| store.put(object, NOT_OWN_WRITE));
        } else {
            self.remove(&raw.key());
        }
    }

    /// Caches an object that a test inserts, whatever its version, or removes it if the selection does not admit it.
    pub(crate) fn insert(&self, object: Object, decoded: &Arc<K>) {
        if self.selection.admits(&object).unwrap_or(true) {
            let key = object.state().key();
            self.update(key.namespace.as_deref(), Some(decoded), |store| store.put(object, NOT_OWN_WRITE));
        } else {
            self.remove(&object.state().key());
        }
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.undecodable.write().remove(key);
        self.update(key.namespace.as_deref(), None, |store| store.remove(key));
    }
}
