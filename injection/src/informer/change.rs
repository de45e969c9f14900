//! What happened to an object of an informer.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, LazyLock},
};

use kube::Resource;
use reknit_apis::Key;

/// A difference between what an informer held and what it holds now.
///
/// Every object that appears is `Added` once and, if it goes, `Deleted` once, also when it went while nobody
/// watched. An object deleted and created again under one name is `Deleted` and then `Added`.
#[derive(Debug)]
pub enum Change<K> {
    /// An object that was not held before.
    Added(Arc<K>),
    /// Another version of an object.
    Updated {
        /// As it was held.
        old: Old<K>,
        /// As it is held now.
        new: Arc<K>,
    },
    /// An object that is gone, or no longer of the selection.
    Deleted {
        /// As it was last held.
        last: Arc<K>,
    },
}

/// An object as it was before a change, decoded when it is first looked at: most who are told of a change look at the
/// new one only.
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
    /// The object as it was, where it was held before, and as it is, where it is.
    ///
    /// A handler that maps objects to keys must look at both: an object whose label moved from one owner to
    /// another concerns the two of them.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use reknit_injection::Change;
    ///
    /// let moved = Change::Updated { old: Arc::new("left").into(), new: Arc::new("joined") };
    /// assert_eq!(moved.objects().map(|o| **o).collect::<Vec<_>>(), ["left", "joined"]);
    /// ```
    pub fn objects(&self) -> impl Iterator<Item = &Arc<K>> {
        let (old, latest) = match self {
            Self::Added(object) | Self::Deleted { last: object } => (None, object),
            Self::Updated { old, new } => (Some(old), new),
        };
        old.into_iter().map(|old| &**old).chain([latest])
    }

    /// The newest state there is: of a deleted object, its last.
    pub fn latest(&self) -> &Arc<K> {
        match self {
            Self::Added(new) | Self::Updated { new, .. } | Self::Deleted { last: new } => new,
        }
    }
}

impl<K: Resource> Change<K> {
    /// The object it is about.
    pub fn key(&self) -> Key {
        Key::of(&**self.latest())
    }
}
