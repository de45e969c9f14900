//! Fields that this release does not know, in a conversion.
//!
//! The definition may be newer than the program: during a rollout, or after a rollback of the program alone. The types
//! drop its new fields. They are kept at their paths, and the API server prunes them if the schema of the other version
//! does not have them there.

use serde_json::Value;

use crate::admission::unknown_fields::field_schema;

/// Copies the fields that neither schema has into the converted object, where it has an object at the same path. A list
/// has to have as many items as before.
pub(super) fn keep(value: Value, schema: &Value, converted: &mut Value, converted_schema: &Value) {
    match (value, converted) {
        (Value::Object(fields), Value::Object(converted)) => {
            let is_open = is_open(schema) || is_open(converted_schema);
            for (key, value) in fields {
                match (field_schema(schema, &key), field_schema(converted_schema, &key)) {
                    (Some(schema), Some(converted_schema)) => {
                        if let Some(converted) = converted.get_mut(&key) {
                            keep(value, schema, converted, converted_schema);
                        }
                    }
                    (None, None) if !is_open => drop(converted.entry(key).or_insert(value)),
                    _ => {}
                }
            }
        }
        (Value::Array(items), Value::Array(converted)) if items.len() == converted.len() => {
            for (item, converted) in items.into_iter().zip(converted) {
                keep(item, &schema["items"], converted, &converted_schema["items"]);
            }
        }
        _ => {}
    }
}

/// Returns true if a type may know fields that its schema does not have, such as those of a flattened map.
fn is_open(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true || schema["x-kubernetes-embedded-resource"] == true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The schema of an object with these fields.
    fn object(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    fn kept(value: Value, schema: &Value, mut converted: Value, converted_schema: &Value) -> Value {
        keep(value, schema, &mut converted, converted_schema);
        converted
    }

    #[test]
    fn fields_that_neither_version_knows_stay_at_their_paths() {
        let part = |name: &str| object(json!({name: {"type": "integer"}}));
        let schema = |name: &str| {
            let items = json!({"type": "array", "items": part(name)});
            object(
                json!({"spec": part(name), "items": items, "map": {"type": "object", "additionalProperties": part(name)}}),
            )
        };
        let value = json!({"spec": {"a": 1, "new": 2}, "items": [{"a": 1, "new": 2}], "map": {"x": {"a": 1, "new": {}}}, "new": 3});
        let converted = json!({"spec": {"b": 1}, "items": [{"b": 1}], "map": {"x": {"b": 1}}});
        let expected = json!({"spec": {"b": 1, "new": 2}, "items": [{"b": 1, "new": 2}], "map": {"x": {"b": 1, "new": {}}}, "new": 3});
        assert_eq!(kept(value, &schema("a"), converted, &schema("b")), expected);
    }

    #[test]
    fn fields_that_a_version_knows_are_left_to_the_conversion() {
        let (old, new) = (object(json!({"a": {}, "both": {}})), object(json!({"b": {}, "both": {}})));
        assert_eq!(kept(json!({"a": 1, "both": 1}), &old, json!({}), &new), json!({}));
        // The schema of the other version has a field of this name, which may mean something else.
        assert_eq!(kept(json!({"b": 1}), &old, json!({}), &new), json!({}));
        assert_eq!(kept(json!({"new": 1}), &old, json!({"new": 2}), &new), json!({"new": 2}));
        let open =
            json!({"type": "object", "properties": {"a": {}}, "x-kubernetes-preserve-unknown-fields": true});
        assert_eq!(kept(json!({"flattened": 1}), &open, json!({}), &new), json!({}));
    }

    #[test]
    fn items_are_left_alone_if_their_number_changes() {
        let schema = json!({"type": "array", "items": object(json!({"a": {}}))});
        let value = json!([{"new": 1}, {"new": 2}]);
        assert_eq!(kept(value, &schema, json!([{}]), &schema), json!([{}]));
    }
}
