//! Fields that this release does not know, in a conversion.
//!
//! The definition may be newer than the program: during a rollout, or after a rollback of the program alone. The types
//! drop its new fields. They are kept at their paths, and the API server prunes them if the schema of the other version
//! does not have them there.

use std::collections::HashMap;

use serde_json::Value;

use crate::admission::unknown_fields::field_schema;

/// Copies the fields that neither schema has into the converted object, where it has an object at the same path. The items of
/// a list are the same if they have the same [identity](identifying_fields), since the conversion may reorder them.
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
        (Value::Array(items), Value::Array(converted)) => {
            let indexes = converted_indexes(&items, converted, schema, converted_schema);
            for (item, index) in items.into_iter().zip(indexes) {
                if let Some(converted) = index.and_then(|index| converted.get_mut(index)) {
                    keep(item, &schema["items"], converted, &converted_schema["items"]);
                }
            }
        }
        _ => {}
    }
}

/// Returns the index at which each item of a list is after its conversion. `None` if its identity is not that of exactly one
/// converted item: a lost field is better than one in another item.
fn converted_indexes(
    items: &[Value],
    converted: &[Value],
    schema: &Value,
    converted_schema: &Value,
) -> Vec<Option<usize>> {
    let names = identifying_fields(items, converted, schema, converted_schema);
    let (own, after) = (unique_indexes(items, &names), unique_indexes(converted, &names));
    let index = |item: &Value| {
        let identity = identity(item, &names);
        own.get(&identity).copied().flatten().and_then(|_| after.get(&identity).copied().flatten())
    };
    items.iter().map(index).collect()
}

/// Returns the names of the fields that tell the items of a list apart: the keys of the list, if both schemas have the same
/// ones, or else the fields that each item has before and after the conversion and that are neither objects nor lists.
fn identifying_fields<'a>(
    items: &'a [Value],
    converted: &[Value],
    schema: &'a Value,
    converted_schema: &Value,
) -> Vec<&'a str> {
    const KEYS: &str = "x-kubernetes-list-map-keys";
    if let Some(keys) = schema[KEYS].as_array().filter(|_| schema[KEYS] == converted_schema[KEYS]) {
        return keys.iter().filter_map(Value::as_str).collect();
    }
    let Some(first) = items.first().and_then(Value::as_object) else { return Vec::new() };
    let has = |item: &Value, name: &str| {
        matches!(item.get(name), Some(Value::Bool(_) | Value::Number(_) | Value::String(_)))
    };
    let is_in_all = |name: &&str| items.iter().chain(converted).all(|item| has(item, name));
    first.keys().map(String::as_str).filter(is_in_all).collect()
}

type Identity<'a> = Vec<Option<&'a Value>>;

fn identity<'a>(item: &'a Value, names: &[&str]) -> Identity<'a> {
    names.iter().map(|name| item.get(name)).collect()
}

/// Returns the index of each identity, or `None` of one that several items have.
fn unique_indexes<'a>(items: &'a [Value], names: &[&str]) -> HashMap<Identity<'a>, Option<usize>> {
    let mut indexes = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        indexes.entry(identity(item, names)).and_modify(|index| *index = None).or_insert(Some(index));
    }
    indexes
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

    /// The schema of a list of such items, with these keys.
    fn list(items: Value, keys: Value) -> Value {
        json!({"type": "array", "items": items, "x-kubernetes-list-map-keys": keys})
    }

    #[test]
    fn unknown_fields_of_items_follow_the_identity_of_the_item() {
        let items = object(json!({"name": {}, "minutes": {}}));
        let value =
            json!([{"name": "b", "minutes": "1m", "new": 1}, {"name": "a", "minutes": "2m", "new": 2}]);
        let sorted = json!([{"name": "a", "minutes": 2}, {"name": "c"}, {"name": "b", "minutes": 1}]);
        let [mut a, mut b] = [sorted[0].clone(), sorted[2].clone()];
        (a["new"], b["new"]) = (json!(2), json!(1));
        let expected = json!([a, {"name": "c"}, b]);
        let keyed = list(items.clone(), json!(["name"]));
        assert_eq!(kept(value.clone(), &keyed, sorted.clone(), &keyed), expected);
        // Without keys, the fields that have changed hide which items are the same.
        let schema = list(items, Value::Null);
        let sorted = json!([{"name": "a", "minutes": 2}, {"name": "b", "minutes": 1}]);
        assert_eq!(kept(value, &schema, sorted.clone(), &schema), sorted);
        let value = json!([{"name": "b", "new": 1}, {"name": "a", "new": 2}]);
        let expected = json!([{"name": "a", "minutes": 2, "new": 2}, {"name": "b", "minutes": 1, "new": 1}]);
        assert_eq!(kept(value, &schema, sorted, &schema), expected);
    }

    #[test]
    fn unknown_fields_of_items_that_cannot_be_told_apart_are_dropped() {
        let schema = list(object(json!({"a": {}})), Value::Null);
        for (value, converted) in [
            (json!([{"new": 1}, {"new": 2}]), json!([{}])),
            (json!([{"new": 1}, {"new": 2}]), json!([{}, {}])),
            (json!([{"a": 1, "new": 1}, {"a": 1, "new": 2}]), json!([{"a": 1}, {"a": 1}])),
            (json!([{"a": 1, "new": 1}, {"a": 2, "new": 2}]), json!([{"a": 2}, {"a": 2}])),
            (json!([[{"new": 1}], [{"new": 2}]]), json!([[{}], [{}]])),
            (json!([1, 2]), json!([1, {}])),
        ] {
            assert_eq!(kept(value, &schema, converted.clone(), &schema), converted);
        }
    }
}
