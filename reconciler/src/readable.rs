//! [`Readable`]: an object as far as it can be decoded.

use std::sync::Arc;

use reknit_apis::Kind;
use reknit_injection::internal::{RawFields, decode_object, decode_value};
use serde_json::Value;

/// An object as far as it can be decoded: a status that cannot be decoded, such as one that a newer version has written,
/// counts as absent. The next status write replaces it.
pub(crate) struct Readable<K> {
    pub(crate) object: Arc<K>,
    /// The stored status, if it cannot be decoded.
    pub(crate) unreadable_status: Option<Box<Value>>,
}

impl<K> From<Arc<K>> for Readable<K> {
    fn from(object: Arc<K>) -> Self {
        Self { object, unreadable_status: None }
    }
}

impl<K: Kind> Readable<K> {
    /// Decodes an object.
    ///
    /// # Errors
    ///
    /// Returns the error of decoding the whole object, if it cannot be decoded without its status either.
    pub(crate) fn decode(json: &str) -> serde_json::Result<Self> {
        let error = match decode_object::<K>(json) {
            Ok(object) => return Ok(Arc::new(object).into()),
            Err(error) => error,
        };
        let mut fields: RawFields<'_> = serde_json::from_str(json)?;
        let Some(status) = fields.remove("status") else { return Err(error) };
        let object = decode_object(&serde_json::to_string(&fields)?).map_err(|_| error)?;
        let unreadable_status = Some(Box::new(decode_value(status.get())?));
        Ok(Self { object: Arc::new(object), unreadable_status })
    }

    /// The resourceVersion of the object.
    pub(crate) fn version(&self) -> Option<&str> {
        self.object.meta().resource_version.as_deref()
    }
}
