//! What stands in the [extensions](http::Extensions) of requests and answers: what is known of them beside their text.

use std::{any::TypeId, panic};

use serde::{Deserialize, de::DeserializeOwned};

/// Of a request that no layer of a [`Transport`](crate::Transport) is to repeat: whoever made it tries again, and wants
/// to tell why.
#[derive(Clone, Copy, Debug)]
pub struct NotRepeated;

/// Of a request that writes nothing but the status of an object, and only if the object is still as it was read.
///
/// So of the answer, an informer of that object's type tries no more than whether the status can be decoded by itself, which
/// the API server may have changed, such as by a default or for want of a field in the CustomResourceDefinition.
#[derive(Clone, Copy, Debug)]
pub struct StatusWrite {
    of: TypeId,
    fits: fn(&str) -> bool,
}

impl StatusWrite {
    /// Of a `K`, whose status is an `S`.
    pub fn of<K: 'static, S: DeserializeOwned>() -> Self {
        Self { of: TypeId::of::<K>(), fits: |status| serde_json::from_str::<S>(status).is_ok() }
    }

    /// Whether an answer with this status can be decoded as a `K`, as far as its status decides that.
    pub(crate) fn leaves_a<K: 'static>(self, status: &str) -> bool {
        self.of == TypeId::of::<K>() && panic::catch_unwind(|| (self.fits)(status)).unwrap_or(false)
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
