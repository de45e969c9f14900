//! [`Readable`]: an object as far as it can be decoded.

use std::{collections::BTreeMap, sync::Arc};

use reknit_apis::Kind;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::shallow::read_value;

/// An object as far as it can be decoded: a status that cannot be decoded, such as one that a newer version has written,
/// counts as absent. The next status write replaces it.
pub(crate) struct Readable<K> {
    pub(crate) object: Arc<K>,
    /// The stored status, if it cannot be decoded.
    pub(crate) unreadable_status: Option<Box<Value>>,
}

/// The fields of an object as they are written. The status may be nested deeper than serde_json decodes.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct RawFields(BTreeMap<String, Box<RawValue>>);

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
    pub(crate) fn decode(RawFields(mut fields): RawFields) -> serde_json::Result<Self> {
        let raw_status = fields.remove("status");
        let decoded = fields.into_iter().map(|(name, raw)| Ok((name, serde_json::from_str(raw.get())?)));
        let mut json = Value::Object(decoded.collect::<serde_json::Result<Map<_, _>>>()?);
        let Some(raw_status) = raw_status else {
            return K::deserialize(&json).map(|whole| Arc::new(whole).into());
        };
        let whole = serde_json::from_str(raw_status.get()).and_then(|status: Value| {
            json["status"] = status;
            K::deserialize(&json)
        });
        let error = match whole {
            Ok(object) => return Ok(Arc::new(object).into()),
            Err(error) => error,
        };
        json.as_object_mut().and_then(|fields| fields.remove("status"));
        let object = serde_json::from_value(json).map_err(|_| error)?;
        Ok(Self { object: Arc::new(object), unreadable_status: Some(Box::new(read_value(&raw_status))) })
    }

    /// The resourceVersion of the object.
    pub(crate) fn version(&self) -> Option<&str> {
        self.object.meta().resource_version.as_deref()
    }
}
