//! Items for the other crates of reknit. They are not part of the public API, and may change in any release.

use reknit_apis::Key;
use serde::Serialize;

use crate::{Cached, Informer};
pub use crate::{
    client::{NoRetry, ResourcePath},
    config::with_pinned_config,
};

/// For tests: inserts an object into the informer's cache and calls its handlers. An object that the selection does not
/// admit is removed instead. Fails if the object cannot be serialized and deserialized again.
pub fn insert<K: Cached + Serialize>(informer: &Informer<K>, object: &K) -> Result<(), String> {
    informer.insert(object)
}

/// For tests: removes an object from the informer's cache and calls its handlers.
pub fn remove<K: Cached>(informer: &Informer<K>, key: &Key) {
    informer.remove(key);
}
