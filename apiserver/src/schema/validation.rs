//! Validates a value against a schema, with the messages of the API server.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::{is_set, of_field};
use crate::response::FieldError;

pub(crate) fn errors(object: &Value, schema: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    // The API server validates metadata by itself.
    for (name, value) in object.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata") {
        if let Some(schema) = of_field(schema, name) {
            check(value, schema, name, &mut errors);
        }
    }
    check_required(object, schema, "", &mut errors);
    errors
}

fn check(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && is_set(schema, "nullable") {
        return;
    }
    if let Some(error) = type_error(value, schema, path) {
        errors.push(error);
        errors.extend(fraction_error(value, schema, path));
        check_enum(value, schema, path, errors);
        return;
    }
    check_enum(value, schema, path, errors);
    match value {
        Value::Number(number) => {
            check_number(number.as_f64().unwrap_or_default(), value, schema, path, errors)
        }
        Value::String(text) => check_length(text, schema, path, errors),
        Value::Array(items) => check_items(items, schema, path, errors),
        Value::Object(fields) => {
            check_required(value, schema, path, errors);
            for (name, value) in fields {
                if let Some(schema) = of_field(schema, name) {
                    check(value, schema, &format!("{path}.{name}"), errors);
                }
            }
        }
        _ => {}
    }
}

fn invalid(path: &str, value: &Value, rule: &str) -> FieldError {
    let shown = match value {
        Value::Array(_) => json!("array").to_string(),
        Value::Object(_) => json!("object").to_string(),
        value => value.to_string(),
    };
    let name = name_in_body(path);
    FieldError::new(path, "FieldValueInvalid", format!("Invalid value: {shown}: {name} in body {rule}"))
}

fn type_error(value: &Value, schema: &Value, path: &str) -> Option<FieldError> {
    let actual = type_of(value);
    if is_set(schema, "x-kubernetes-int-or-string") {
        let is_allowed = matches!(actual, "integer" | "string");
        return (!is_allowed).then(|| wrong_type(path, "integer,string", actual));
    }
    let expected = schema.get("type").and_then(Value::as_str)?;
    let is_expected = actual == expected || (expected, actual) == ("number", "integer");
    (!is_expected).then(|| wrong_type(path, expected, actual))
}

/// The second error that the API server reports for a fraction in an integer field.
fn fraction_error(value: &Value, schema: &Value, path: &str) -> Option<FieldError> {
    let is_fraction = schema["type"] == "integer" && value.is_number();
    let message = || {
        let name = name_in_body(path);
        format!("Invalid value: \"\": Checked value must be of type integer (default format) in {name}")
    };
    is_fraction.then(|| FieldError::new("<nil>", "FieldValueInvalid", message()))
}

fn wrong_type(path: &str, expected: &str, actual: &str) -> FieldError {
    let name = name_in_body(path);
    let message =
        format!("Invalid value: \"{actual}\": {name} in body must be of type {expected}: \"{actual}\"");
    FieldError::new(path, "FieldValueTypeInvalid", message)
}

/// The name of a field in messages. The API server validates the status alone, so its name is not in them.
fn name_in_body(path: &str) -> &str {
    path.strip_prefix("status.").unwrap_or(path)
}

/// The type of a value, as OpenAPI names it.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn check_enum(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(allowed) = schema.get("enum").and_then(Value::as_array) else { return };
    if !allowed.contains(value) {
        let allowed: Vec<_> = allowed.iter().map(Value::to_string).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", allowed.join(", "));
        errors.push(FieldError::new(path, "FieldValueNotSupported", message));
    }
}

fn check_number(number: f64, value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let bounds = [
        ("minimum", "exclusiveMinimum", Ordering::Less, "greater than"),
        ("maximum", "exclusiveMaximum", Ordering::Greater, "less than"),
    ];
    for (name, exclusive, outside, rule) in bounds {
        let Some(bound) = schema.get(name).and_then(Value::as_f64) else { continue };
        let (order, is_exclusive) = (number.partial_cmp(&bound), is_set(schema, exclusive));
        if order == Some(outside) || (is_exclusive && order == Some(Ordering::Equal)) {
            let or_equal = if is_exclusive { "" } else { " or equal to" };
            errors.push(invalid(path, value, &format!("should be {rule}{or_equal} {bound}")));
        }
    }
}

fn check_length(text: &str, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let (length, limit) = (text.chars().count(), |name: &str| size_limit(schema, name));
    if let Some(minimum) = limit("minLength").filter(|minimum| length < *minimum) {
        errors.push(invalid(path, &json!(text), &format!("should be at least {minimum} chars long")));
    }
    if let Some(maximum) = limit("maxLength").filter(|maximum| length > *maximum) {
        let message = format!("Too long: may not be more than {maximum} bytes");
        errors.push(FieldError::new(path, "FieldValueTooLong", message));
    }
}

fn check_items(items: &[Value], schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let limit = |name: &str| size_limit(schema, name);
    if let Some(minimum) = limit("minItems").filter(|minimum| items.len() < *minimum) {
        let rule = format!("should have at least {minimum} items");
        errors.push(invalid(path, &json!(items.len()), &rule));
    }
    if let Some(maximum) = limit("maxItems").filter(|maximum| items.len() > *maximum) {
        let message = format!("Too many: {}: must have at most {maximum} items", items.len());
        errors.push(FieldError::new(path, "FieldValueTooMany", message));
    }
    if let Some(schema) = schema.get("items") {
        for (index, item) in items.iter().enumerate() {
            check(item, schema, &format!("{path}[{index}]"), errors);
        }
    }
    check_unique(items, schema, path, errors);
}

/// Checks that no two items of a set or of a map are the same.
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
fn keys_of(item: &Value, schema: &Value) -> Value {
    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).into_iter().flatten();
    let fields =
        keys.filter_map(Value::as_str).filter_map(|key| Some((key.to_owned(), item.get(key)?.clone())));
    Value::Object(fields.collect())
}

fn check_required(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str).filter(|name| value.get(name).is_none()) {
        let path = if path.is_empty() { name.into() } else { format!("{path}.{name}") };
        errors.push(FieldError::new(&path, "FieldValueRequired", "Required value"));
    }
}

fn size_limit(schema: &Value, name: &str) -> Option<usize> {
    schema.get(name)?.as_u64()?.try_into().ok()
}
