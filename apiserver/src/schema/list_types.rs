//! Lists that are sets or maps.

use serde_json::Value;

use super::OBJECT_FIELDS;
use crate::response::FieldError;

/// Returns the items of sets and maps that are there twice.
pub(super) fn errors(object: &Value, schema: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if !OBJECT_FIELDS.contains(&name.as_str())
            && let Some(schema) = schema["properties"].get(name)
        {
            check(value, schema, name, &mut errors);
        }
    }
    errors
}

fn check(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Array(items) => {
            check_unique(items, schema, path, errors);
            if let Some(schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    check(item, schema, &format!("{path}[{index}]"), errors);
                }
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(schema) = schema["properties"].get(name) {
                    check(value, schema, &format!("{path}.{name}"), errors);
                } else if let Some(schema) = schema.get("additionalProperties") {
                    check(value, schema, &format!("{path}[{name}]"), errors);
                }
            }
        }
        _ => {}
    }
}

fn check_unique(items: &[Value], schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let identity = |item: &Value| match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => Some(item.clone()),
        Some("map") => Some(keys_of(item, schema)),
        _ => None,
    };
    let identities: Vec<_> = items.iter().filter_map(identity).collect();
    for (index, identity) in identities.iter().enumerate() {
        if identities[..index].contains(identity) {
            let message = format!("Duplicate value: {identity}");
            errors.push(FieldError::new(&format!("{path}[{index}]"), "FieldValueDuplicate", message));
        }
    }
}

/// The fields of an item that identify it in a list of type map.
pub(super) fn keys_of(item: &Value, schema: &Value) -> Value {
    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).into_iter().flatten();
    let fields =
        keys.filter_map(Value::as_str).filter_map(|key| Some((key.to_owned(), item.get(key)?.clone())));
    Value::Object(fields.collect())
}
