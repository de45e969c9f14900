//! What happened to an object of an informer.

use std::sync::Arc;

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
        old: Arc<K>,
        /// As it is held now.
        new: Arc<K>,
    },
    /// An object that is gone, or no longer of the selection.
    Deleted {
        /// As it was last held.
        last: Arc<K>,
    },
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
    /// let moved = Change::Updated { old: Arc::new("left"), new: Arc::new("joined") };
    /// assert_eq!(moved.objects().map(|o| **o).collect::<Vec<_>>(), ["left", "joined"]);
    /// ```
    pub fn objects(&self) -> impl Iterator<Item = &Arc<K>> {
        let (first, second) = match self {
            Self::Added(object) | Self::Deleted { last: object } => (object, None),
            Self::Updated { old, new } => (old, Some(new)),
        };
        std::iter::once(first).chain(second)
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
