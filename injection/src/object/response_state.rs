//! The state of an object in a response, as the caches apply it.

use reknit_apis::Key;

use super::{RawObject, ResourceVersion};

/// The state of one object according to the response to a request of this process.
pub(crate) enum ResponseState<'a> {
    /// The object in the response, and its text. If the object no longer exists, the response to its deletion contains
    /// its last state.
    Object { raw: &'a RawObject<'a>, text: &'a str, is_deletion: bool },
    /// An item of a list. Items of built-in Kinds do not name their Kind.
    Item { raw: &'a RawObject<'a>, text: &'a str },
    /// A deletion that the API server confirmed without the object.
    Deleted { key: &'a Key, uid: Option<&'a str> },
    /// The absence of the object from a list of this version.
    Absent { key: &'a Key, version: Option<ResourceVersion<'a>> },
}
