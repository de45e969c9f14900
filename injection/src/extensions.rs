//! What stands in the [extensions](http::Extensions) of requests and answers: what is known of them beside their text.

use std::any::TypeId;

use serde::Deserialize;

/// Of a request that no layer of a [`Transport`](crate::Transport) is to repeat: whoever made it tries again, and wants
/// to tell why.
#[derive(Clone, Copy, Debug)]
pub struct NotRepeated;

/// Of a request that writes nothing but the status of an object, from a value of its type, and only if the object is
/// still as it was read.
///
/// So the answer can be decoded as well as what was read, and an informer of that type holds it without trying. Should
/// the API server make of the status what the type cannot hold, such as by a default of the CustomResourceDefinition,
/// that shows when the object is read from the informer, as with an object of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusWrite(TypeId);

impl StatusWrite {
    /// Of an object of this type.
    pub fn of<K: 'static>() -> Self {
        Self(TypeId::of::<K>())
    }

    pub(crate) fn is_of<K: 'static>(self) -> bool {
        self.0 == TypeId::of::<K>()
    }
}

/// Of the answer to a write or a read of one object, where an informer has read it: what the next write has to know.
/// Whoever asked need not read the answer once more for that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Newest {
    /// `metadata.resourceVersion`
    pub resource_version: Option<String>,
    /// `metadata.finalizers`
    pub finalizers: Option<Vec<String>>,
}
