//! A change of one cached object, in encoded form.

use crate::object::Object;

/// A change of one cached object.
pub(crate) enum Delta {
    Added(Object),
    Updated { old: Object, new: Object },
    Deleted(Object),
}

/// The deltas of one event: none, one, or two if another object of the same name replaced the cached object.
pub(crate) type Deltas = [Option<Delta>; 2];

impl Delta {
    /// The object before the change and after it.
    pub(crate) fn objects(&self) -> [Option<&Object>; 2] {
        match self {
            Self::Added(new) => [None, Some(new)],
            Self::Updated { old, new } => [Some(old), Some(new)],
            Self::Deleted(last) => [Some(last), None],
        }
    }

    /// The new state, or the last state of a deleted object.
    pub(crate) fn latest(&self) -> &Object {
        match self {
            Self::Added(new) | Self::Updated { new, .. } | Self::Deleted(new) => new,
        }
    }
}
