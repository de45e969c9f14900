//! The change that an admission request asks for.

use reknit_apis::{Operation, Request};
use serde_json::Value;

use super::denial::Denial;

/// The creation, update or deletion of an object.
pub(crate) struct Change {
    pub(crate) request: Request,
    pub(crate) object: Option<Value>,
    pub(crate) old: Option<Value>,
}

impl Change {
    pub(crate) fn new_object(&self) -> Result<&Value, Denial> {
        self.object.as_ref().ok_or_else(|| "the new object may not be nil".into())
    }

    /// Returns true if only the metadata of a terminating object changes, as when a finalizer is removed. Such an
    /// update must be allowed even if the object is invalid.
    pub(super) fn is_metadata_update_of_terminating_object(&self) -> bool {
        let (Some(object), Some(old)) = (&self.object, &self.old) else { return false };
        let is_terminating = !old["metadata"]["deletionTimestamp"].is_null();
        self.request.operation == Operation::Update
            && is_terminating
            && differ_only_in(&["metadata"], object, old)
    }
}

/// Returns true if two objects differ at most in these fields.
pub(crate) fn differ_only_in(fields: &[&str], object: &Value, other: &Value) -> bool {
    let (Some(object), Some(other)) = (object.as_object(), other.as_object()) else { return false };
    let is_equal = |key: &String| fields.contains(&&**key) || object.get(key) == other.get(key);
    object.keys().chain(other.keys()).all(is_equal)
}
