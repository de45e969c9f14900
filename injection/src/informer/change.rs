//! A change of one cached object, decoded for handlers.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, LazyLock},
};

use kube::Resource;
use reknit_apis::Key;

/// A change of an object in the cache of an informer.
///
/// Every object is `Added` once and, when it is gone, `Deleted` once, even if it was deleted while no watch was open.
/// If an object is deleted and another one of its name is created, the changes are `Deleted` and then `Added`.
#[derive(Debug)]
pub enum Change<K> {
    /// An object that was not cached before.
    Added(Arc<K>),
    /// A new version of a cached object. After a list, it may have the resourceVersion of the old state: the API server
    /// applies defaults, pruning and conversion when it reads, so a changed definition changes what it returns.
    Updated {
        /// The state before the change.
        old: Old<K>,
        /// The state after the change.
        new: Arc<K>,
    },
    /// An object that was deleted or left the selection.
    Deleted {
        /// The last state.
        last: Arc<K>,
    },
}

/// The state of an object before a change. It is decoded when it is first read, since most handlers read the new state
/// only.
pub struct Old<K>(Arc<LazyLock<Arc<K>, Decode<K>>>);

type Decode<K> = Box<dyn FnOnce() -> Arc<K> + Send>;

impl<K> Old<K> {
    pub(crate) fn new(decode: impl FnOnce() -> Arc<K> + Send + 'static) -> Self {
        Self(Arc::new(LazyLock::new(Box::new(decode))))
    }
}

impl<K: Send + Sync + 'static> From<Arc<K>> for Old<K> {
    fn from(old: Arc<K>) -> Self {
        Self::new(move || old)
    }
}

impl<K> Deref for Old<K> {
    type Target = Arc<K>;

    fn deref(&self) -> &Arc<K> {
        &self.0
    }
}

impl<K> Clone for Old<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: fmt::Debug> fmt::Debug for Old<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Added(new) => Self::Added(new.clone()),
            Self::Updated { old, new } => Self::Updated { old: old.clone(), new: new.clone() },
            Self::Deleted { last } => Self::Deleted { last: last.clone() },
        }
    }
}

impl<K> Change<K> {
    /// Returns the state before the change, if the object was cached, and the state after it, if the object exists.
    ///
    /// A handler that maps objects to keys must map both: a label that moved from one owner to another concerns both
    /// owners.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use reknit_injection::Change;
    ///
    /// let change = Change::Updated { old: Arc::new("old").into(), new: Arc::new("new") };
    /// assert_eq!(change.objects().map(|o| **o).collect::<Vec<_>>(), ["old", "new"]);
    /// ```
    pub fn objects(&self) -> impl Iterator<Item = &Arc<K>> {
        let (old, latest) = match self {
            Self::Added(object) | Self::Deleted { last: object } => (None, object),
            Self::Updated { old, new } => (Some(old), new),
        };
        old.into_iter().map(|old| &**old).chain([latest])
    }

    /// Returns the new state, or the last state of a deleted object.
    pub fn latest(&self) -> &Arc<K> {
        match self {
            Self::Added(new) | Self::Updated { new, .. } | Self::Deleted { last: new } => new,
        }
    }
}

impl<K: Resource> Change<K> {
    /// Returns the key of the object.
    pub fn key(&self) -> Key {
        Key::of(&**self.latest())
    }
}
