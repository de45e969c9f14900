//! The answer to a request of this process, as the caches apply it.

use reknit_apis::Key;

use crate::object::{RawObject, ResourceVersion};

/// The outcome of a request of this process for one object.
pub(crate) enum Answered<'a> {
    /// The object of the answer, and its text. The answer to a `deletion` holds the last state if the object is gone.
    Object { raw: &'a RawObject<'a>, text: &'a str, deletion: bool },
    /// An item of a list. Items of built-in Kinds do not name their Kind.
    Item { raw: &'a RawObject<'a>, text: &'a str },
    /// A deletion that the API server confirmed without the object.
    Deleted { key: &'a Key, uid: Option<&'a str> },
    /// The absence of the object from a list of this version.
    Absent { key: &'a Key, version: Option<ResourceVersion<'a>> },
}
