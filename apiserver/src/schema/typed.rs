//! Checks that a configuration to apply has the fields and types of the schema, before it is merged.

use serde_json::Value;

use super::{OBJECT_FIELDS, is_set, keeps_unknown_fields, of_field};

/// Returns the first fault, with the message of server-side apply: `.spec.sise: field not declared in schema`.
pub(crate) fn fault(configuration: &Value, schema: &Value) -> Option<String> {
    let fields =
        configuration.as_object()?.iter().filter(|(name, _)| !OBJECT_FIELDS.contains(&name.as_str()));
    fields.into_iter().find_map(|(name, value)| field_fault(name, value, schema, ""))
}

fn field_fault(name: &str, value: &Value, schema: &Value, path: &str) -> Option<String> {
    let path = format!("{path}.{name}");
    match of_field(schema, name) {
        Some(schema) => value_fault(value, schema, &path),
        None if keeps_unknown_fields(schema) => None,
        None => Some(format!("{path}: field not declared in schema")),
    }
}

fn value_fault(value: &Value, schema: &Value, path: &str) -> Option<String> {
    if value.is_null() || is_set(schema, "x-kubernetes-int-or-string") {
        return None;
    }
    let expected = match (schema.get("type").and_then(Value::as_str)?, value) {
        ("integer" | "number", value) if !value.is_number() => {
            return Some(format!("{path}: expected numeric (int or float), got {}", go_type(value)));
        }
        ("string", value) if !value.is_string() => "string",
        ("boolean", value) if !value.is_boolean() => "boolean",
        ("array", value) if !value.is_array() => "list",
        ("object", value) if !value.is_object() => "map",
        _ => return contents_fault(value, schema, path),
    };
    Some(format!("{path}: expected {expected}, got {value}"))
}

fn contents_fault(value: &Value, schema: &Value, path: &str) -> Option<String> {
    match value {
        Value::Object(fields) => {
            fields.iter().find_map(|(name, value)| field_fault(name, value, schema, path))
        }
        Value::Array(items) => {
            let schema = schema.get("items")?;
            let mut faults = items.iter().enumerate();
            faults.find_map(|(index, item)| value_fault(item, schema, &format!("{path}[{index}]")))
        }
        _ => None,
    }
}

/// The Go type of a JSON value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
