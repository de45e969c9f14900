//! Items that other crates of the framework use. They are not part of the public API.

use reknit_apis::Key;
use serde::Serialize;

use crate::{Cached, Informer};
pub use crate::{
    client::{NotRepeated, ResourcePath},
    config::pinned,
};

/// Caches an object of a test and calls the handlers. Fails if the object cannot be written as JSON and read again.
pub fn insert<K: Cached + Serialize>(informer: &Informer<K>, object: &K) -> Result<(), String> {
    informer.insert(object)
}

/// Removes an object of a test and calls the handlers.
pub fn remove<K: Cached>(informer: &Informer<K>, key: &Key) {
    informer.remove(key);
}
