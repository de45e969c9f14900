//! The path of a fault that decoding found.
//!
//! serde buffers the fields of a `#[serde(flatten)]` part and decodes them afterwards, so an error in such a field has
//! the path of the enclosing object. The rest of the path leads to the first value that breaks the schema of the Kind
//! in the way that the error says.

use std::fmt;

use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use super::unknown_fields::field_schema;

/// A path such as `spec.steps[0].ref`. Empty for the object itself.
#[derive(Default)]
pub(super) struct FaultPath<'a>(Vec<Step<'a>>);

enum Step<'a> {
    Field(&'a str),
    Item(usize),
    /// A part of serde's path that is not a field of the value, such as the variant of an enum.
    Other(&'a Segment),
}

impl<'a> FaultPath<'a> {
    /// Finds the path of an error from its path in serde, the decoded value and its schema. `missing` is the name of
    /// the field that is missing; `None` for other errors.
    pub(super) fn find(decoded: &'a Path, value: &'a Value, schema: &Value, missing: Option<&str>) -> Self {
        let (mut path, mut place) = (Self::default(), Some((value, schema)));
        for segment in decoded {
            let step = match segment {
                Segment::Map { key } => Step::Field(key),
                Segment::Seq { index } => Step::Item(*index),
                Segment::Enum { .. } | Segment::Unknown => Step::Other(segment),
            };
            place = place.and_then(|(value, schema)| step.follow(value, schema));
            path.0.push(step);
        }
        if let Some((value, schema)) = place {
            path.extend_to_fault(value, schema, missing);
        }
        path
    }

    /// Extends the path to the first fault of the value, and returns true. If the schema shows no fault, leaves the
    /// path and returns false.
    fn extend_to_fault(&mut self, value: &'a Value, schema: &Value, missing: Option<&str>) -> bool {
        let is_fault = match missing {
            Some(field) => lacks_required(value, schema, field),
            None => !has_valid_type(value, schema),
        };
        let mut extend_by = |step: Step<'a>, value| {
            let schema = match step {
                Step::Field(key) => field_schema(schema, key).unwrap_or(&Value::Null),
                _ => &schema["items"],
            };
            self.0.push(step);
            let found = self.extend_to_fault(value, schema, missing);
            if !found {
                self.0.pop();
            }
            found
        };
        is_fault
            || match value {
                Value::Object(fields) => fields.iter().any(|(key, value)| extend_by(Step::Field(key), value)),
                Value::Array(items) => {
                    items.iter().enumerate().any(|(index, item)| extend_by(Step::Item(index), item))
                }
                _ => false,
            }
    }
}

impl Step<'_> {
    fn follow<'v, 's>(&self, value: &'v Value, schema: &'s Value) -> Option<(&'v Value, &'s Value)> {
        match self {
            Self::Field(key) => Some((value.get(key)?, field_schema(schema, key)?)),
            Self::Item(index) => Some((value.get(index)?, &schema["items"])),
            Self::Other(_) => None,
        }
    }
}

fn lacks_required(value: &Value, schema: &Value, field: &str) -> bool {
    let mut required = schema["required"].as_array().into_iter().flatten();
    value.is_object() && value.get(field).is_none() && required.any(|name| name == field)
}

/// Checks a value against the type, the enum and the bounds of its schema, but not its fields or items.
fn has_valid_type(value: &Value, schema: &Value) -> bool {
    if value.is_null() && (schema["nullable"] == true || schema["type"].is_null()) {
        return true;
    }
    let is_integer = value.is_i64() || value.is_u64();
    let has_type = match schema["type"].as_str() {
        _ if schema["x-kubernetes-int-or-string"] == true => is_integer || value.is_string(),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => is_integer,
        Some("number") => value.is_number(),
        _ => true,
    };
    let is_listed = schema["enum"].as_array().is_none_or(|values| values.contains(value));
    has_type && is_listed && is_within_bounds(value, schema)
}

fn is_within_bounds(value: &Value, schema: &Value) -> bool {
    let Some(number) = value.as_f64() else { return true };
    let is_int32 = schema["format"] != "int32" || value.as_i64().is_some_and(|n| i32::try_from(n).is_ok());
    is_int32
        && schema["minimum"].as_f64().is_none_or(|minimum| number >= minimum)
        && schema["maximum"].as_f64().is_none_or(|maximum| number <= maximum)
}

impl fmt::Display for FaultPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            let dot = if index > 0 { "." } else { "" };
            match step {
                Step::Field(key) => write!(f, "{dot}{key}")?,
                Step::Item(index) => write!(f, "[{index}]")?,
                Step::Other(segment) => write!(f, "{dot}{segment}")?,
            }
        }
        Ok(())
    }
}
