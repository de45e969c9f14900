//! JSON values as text.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

/// A JSON value as its text, which takes a tenth of the memory of a [`Value`]. A clone shares the text. The fields of
/// objects are sorted, so equal values have equal texts.
#[derive(Clone)]
pub(super) struct Compact(Arc<RawValue>);

impl Compact {
    pub(super) fn text(&self) -> &str {
        self.0.get()
    }

    pub(super) fn value(&self) -> Value {
        serde_json::from_str(self.0.get()).unwrap_or_default()
    }
}

impl From<&Value> for Compact {
    fn from(value: &Value) -> Self {
        Self(to_raw_value(value).unwrap_or_default().into())
    }
}

impl PartialEq for Compact {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for Compact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}
