//! Enums that may be null.
//!
//! The API server compares null with the values of `enum`, even if they contain null, and ignores the other restrictions of
//! null. So the values of a nullable enum are in `allOf`.

use serde_json::{Map, Value, json};

/// A schema as JSON.
pub(super) type Node = Map<String, Value>;

/// Moves the values of a nullable enum to `allOf`.
pub(super) fn allow_null(node: &mut Node) {
    if node.get("nullable").is_none_or(|value| *value != true) {
        return;
    }
    if let Some(values) = node.remove("enum") {
        let parts = node.entry("allOf").or_insert_with(|| json!([]));
        parts.as_array_mut().into_iter().for_each(|parts| parts.push(json!({"enum": values.clone()})));
    }
}

/// Undoes [`allow_null`], and takes null from the values of an enum.
pub(super) fn separate_null(node: &mut Node) {
    let parts = node.get_mut("allOf").and_then(Value::as_array_mut);
    let is_enum =
        |part: &Value| part.as_object().is_some_and(|part| part.len() == 1 && part.contains_key("enum"));
    if let Some(parts) = parts
        && let Some(index) = parts.iter().position(is_enum)
    {
        let values = parts.remove(index)["enum"].take();
        if parts.is_empty() {
            node.remove("allOf");
        }
        node.insert("enum".into(), values);
    }
    let Some(Value::Array(values)) = node.get_mut("enum") else { return };
    let count = values.len();
    values.retain(|value| !value.is_null());
    let (is_nullable, is_empty) = (values.len() < count, values.is_empty());
    if is_nullable {
        node.insert("nullable".into(), true.into());
    }
    if is_empty {
        node.remove("enum");
    }
}
