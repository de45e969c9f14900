//! Validates a value against a schema, with the messages of the API server.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::{alternatives, is_set, node::Node, outcome::Outcome};
use crate::response::FieldError;

/// Validates a value. An update that does not change a value does not report its errors.
pub(super) fn validate(node: &Node) -> Outcome {
    let mut outcome = check(node);
    if !outcome.is_valid() && node.is_unchanged() {
        outcome.errors.clear();
    }
    outcome
}

fn check(node: &Node) -> Outcome {
    let mut outcome = Outcome::default();
    if node.value.is_null() {
        outcome.merge(check_type(node).unwrap_or_default());
        outcome.merge(check_enum(node));
        return outcome;
    }
    let found = [
        check_type(node),
        Some(alternatives::check(node)),
        node.value.as_str().map(|text| check_length(node, text)),
        node.value.as_f64().map(|number| check_number(node, number)),
        node.value.as_array().map(|items| check_items(node, items)),
        Some(check_enum(node)),
        node.value.is_object().then(|| check_object(node)),
    ];
    for found in found.into_iter().flatten() {
        outcome.merge(found);
        outcome.matches += 1;
    }
    outcome.matches += 1;
    outcome
}

fn check_type(node: &Node) -> Option<Outcome> {
    let actual = type_of(node.value);
    let expected = if is_set(node.schema, "x-kubernetes-int-or-string") {
        "integer,string"
    } else {
        node.schema.get("type")?.as_str()?
    };
    let is_expected = expected.split(',').any(|expected| expected == actual)
        || (expected, actual) == ("number", "integer")
        || (actual == "null" && is_set(node.schema, "nullable"));
    Some(if is_expected { Outcome::passed() } else { type_error(node, expected, actual).into() })
}

/// The error of a value of another type. The API server names the format of a field that has one, except to texts and lists.
fn type_error(node: &Node, expected: &str, actual: &str) -> FieldError {
    let format = node.schema.get("format").and_then(Value::as_str);
    match (format, node.value) {
        (_, Value::Null | Value::String(_) | Value::Array(_)) | (None, _) => {
            wrong_type(node, expected, actual)
        }
        (Some(expected), Value::Number(number)) if number.is_f64() => wrong_type(node, expected, "float64"),
        (Some(expected), Value::Number(_)) => wrong_type(node, expected, "int64"),
        (Some(expected), _) => wrong_type(node, expected, ""),
    }
}

fn wrong_type(node: &Node, expected: &str, actual: &str) -> FieldError {
    let name = &node.name;
    let message =
        format!("Invalid value: \"{actual}\": {name} in body must be of type {expected}: \"{actual}\"");
    node.error("FieldValueTypeInvalid", message)
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

fn check_enum(node: &Node) -> Outcome {
    let mut outcome = Outcome::default();
    let Some(allowed) = node.schema.get("enum").and_then(Value::as_array) else { return outcome };
    if !allowed.contains(node.value) || node.value.is_null() {
        let allowed: Vec<_> = allowed.iter().map(Value::to_string).collect();
        let message = format!("Unsupported value: {}: supported values: {}", node.value, allowed.join(", "));
        outcome.add(node.error("FieldValueNotSupported", message));
    }
    outcome
}

fn check_number(node: &Node, number: f64) -> Outcome {
    let mut outcome = Outcome::passed();
    outcome.errors.extend(range_error(node));
    outcome.errors.extend(factor_error(node, number));
    let bounds = [
        ("minimum", "exclusiveMinimum", Ordering::Less, "greater than"),
        ("maximum", "exclusiveMaximum", Ordering::Greater, "less than"),
    ];
    for (name, exclusive, outside, rule) in bounds {
        let Some(bound) = node.schema.get(name).and_then(Value::as_f64) else { continue };
        let (order, is_exclusive) = (number.partial_cmp(&bound), is_set(node.schema, exclusive));
        if order == Some(outside) || (is_exclusive && order == Some(Ordering::Equal)) {
            let or_equal = if is_exclusive { "" } else { " or equal to" };
            outcome.add(node.invalid(node.value, &format!("should be {rule}{or_equal} {bound}")));
        }
    }
    outcome
}

/// The error of a number that is not a multiple. For an integer, the API server drops the fraction of the factor, and refuses
/// the factor if nothing is left.
fn factor_error(node: &Node, number: f64) -> Option<FieldError> {
    let factor = node.schema.get("multipleOf")?.as_f64()?;
    let factor = if node.value.is_f64() { factor } else { factor.trunc() };
    if factor == 0.0 {
        let rule = format!("factor MultipleOf declared for {} must be positive: 0", node.name);
        return Some(node.error("FieldValueInvalid", format!("Invalid value: 0: {rule}")));
    }
    let multiple = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
    let is_multiple = multiple.fract() == 0.0;
    (!is_multiple).then(|| node.invalid(node.value, &format!("should be a multiple of {factor}")))
}

/// The error of a number in an integer field that is a fraction or beyond the range of the format `int32`.
fn range_error(node: &Node) -> Option<FieldError> {
    let format = node.schema.get("format").and_then(Value::as_str);
    let is_in_range = match node.value.as_i64() {
        Some(integer) => format != Some("int32") || i32::try_from(integer).is_ok(),
        None => type_of(node.value) == "integer",
    };
    let is_integer = node.schema.get("type").is_some_and(|expected| expected == "integer");
    (is_integer && !is_in_range).then(|| {
        let format = format.map_or("(default format)".into(), |format| format!("with format {format}"));
        node.error_of_root(&format!("Checked value must be of type integer {format} in {}", node.name))
    })
}

fn check_length(node: &Node, text: &str) -> Outcome {
    let (length, limit) = (text.chars().count(), |name: &str| size_limit(node, name));
    if let Some(maximum) = limit("maxLength").filter(|maximum| length > *maximum) {
        let bytes = if maximum == 1 { "byte" } else { "bytes" };
        let message = format!("Too long: may not be more than {maximum} {bytes}");
        return node.error("FieldValueTooLong", message).into();
    }
    if let Some(minimum) = limit("minLength").filter(|minimum| length < *minimum) {
        return node.invalid(node.value, &format!("should be at least {minimum} chars long")).into();
    }
    Outcome::default()
}

fn check_items(node: &Node, items: &[Value]) -> Outcome {
    let mut outcome = Outcome::passed();
    if let Some(schema) = node.schema.get("items") {
        for (index, item) in items.iter().enumerate() {
            outcome.merge(validate(&node.item(index, item, schema)));
        }
    }
    outcome.merge(check_size(node, items.len(), "items", ["minItems", "maxItems"]));
    outcome
}

fn check_object(node: &Node) -> Outcome {
    let fields = node.value.as_object();
    let size = fields.map_or(0, serde_json::Map::len);
    let mut outcome = check_size(node, size, "properties", ["minProperties", "maxProperties"]);
    for (name, value) in fields.into_iter().flatten() {
        // The API server validates metadata by itself.
        if let Some(field) = node.field(name, value).filter(|_| !(node.is_object() && name == "metadata")) {
            outcome.merge(validate(&field));
        }
    }
    let required = node.schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str).filter(|name| node.value.get(name).is_none()) {
        outcome.add(node.missing(name));
    }
    outcome
}

/// Checks the number of items or fields.
fn check_size(node: &Node, size: usize, of: &str, [minimum, maximum]: [&str; 2]) -> Outcome {
    let mut outcome = Outcome::default();
    if let Some(minimum) = size_limit(node, minimum).filter(|minimum| size < *minimum) {
        outcome.add(node.invalid(&json!(size), &format!("should have at least {minimum} {of}")));
    }
    if let Some(maximum) = size_limit(node, maximum).filter(|maximum| size > *maximum) {
        let items = if maximum == 1 { "item" } else { "items" };
        let message = format!("Too many: {size}: must have at most {maximum} {items}");
        outcome.add(node.error("FieldValueTooMany", message));
    }
    outcome
}

fn size_limit(node: &Node, name: &str) -> Option<usize> {
    node.schema.get(name)?.as_u64()?.try_into().ok()
}
