//! Objects in a form whose merge patches change single items of lists, as a server-side apply does.
//!
//! A list of objects with names becomes an object of its items by name. So the patches of two writers that change
//! different items of one list, such as the containers of a pod, do not replace each other's items.

use std::borrow::Borrow;

use serde_json::{Map, Value};

use super::diff::identity;

/// The field with the names of the items in their order, which marks such an object. No field of an object has this name.
const ORDER: &str = "\0order";

/// Replaces each list whose items have a name of their own.
pub(super) fn keyed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), keyed(value))).collect(),
        Value::Array(items) => match identity(items) {
            Some(field) if !items.is_empty() => {
                let entries = items.iter().map(|item| (text(&item[field]), keyed(item)));
                let mut fields: Map<_, _> = entries.collect();
                fields.insert(ORDER.into(), items.iter().map(|item| item[field].clone()).collect());
                Value::Object(fields)
            }
            _ => Value::Array(items.iter().map(keyed).collect()),
        },
        other => other.clone(),
    }
}

/// Returns the object in its original form. Items that the last writer of a list did not name follow the others.
pub(super) fn unkeyed(value: Value) -> Value {
    match value {
        Value::Object(mut fields) => match fields.remove(ORDER) {
            Some(order) => {
                let named =
                    order.as_array().into_iter().flatten().filter_map(|name| fields.remove(&text(name)));
                let named: Vec<_> = named.collect();
                Value::Array(named.into_iter().chain(fields.into_values()).map(unkeyed).collect())
            }
            None => fields.into_iter().map(|(name, value)| (name, unkeyed(value))).collect(),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(unkeyed).collect()),
        other => other,
    }
}

/// Applies a merge patch of the keyed form.
pub(super) fn merge(base: &Value, patches: impl Iterator<Item = impl Borrow<Value>>) -> Value {
    let mut merged = keyed(base);
    patches.for_each(|patch| json_patch::merge(&mut merged, patch.borrow()));
    unkeyed(merged)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::overlay::difference, *};

    #[test]
    fn writers_of_different_items_keep_each_others() {
        let list = |items: Value| json!({"spec": {"containers": items}});
        let base = list(json!([{"name": "b", "image": "1"}, {"name": "a", "image": "1", "args": ["x"]}]));
        let image = list(json!([{"name": "b", "image": "1"}, {"name": "a", "image": "2", "args": ["x"]}]));
        let env = list(
            json!([{"name": "b", "image": "1", "env": [{"name": "E", "value": "1"}]}, {"name": "a", "image": "1", "args": ["x"]}]),
        );
        let patches = [&image, &env].map(|after| difference(&keyed(&base), &keyed(after)));
        let expected = list(json!([
            {"name": "b", "image": "1", "env": [{"name": "E", "value": "1"}]},
            {"name": "a", "image": "2", "args": ["x"]},
        ]));
        assert_eq!(merge(&base, patches.iter()), expected);
        assert_eq!(merge(&base, patches.iter().rev()), expected);
    }

    #[test]
    fn items_are_added_removed_and_replaced() {
        for (before, after) in [
            (json!({"a": [{"name": "x"}]}), json!({"a": [{"name": "x"}, {"name": "y"}]})),
            (json!({"a": [{"name": "x"}, {"name": "y"}]}), json!({"a": [{"name": "y"}]})),
            (json!({"a": [{"name": "x"}]}), json!({"a": []})),
            (json!({"a": [{"name": "x"}, {"name": "y"}]}), json!({"a": [{"name": "y"}, {"name": "x"}]})),
            (json!({"a": [1, 2]}), json!({"a": [{"name": "x"}]})),
            (json!({"a": [{"name": "x"}]}), json!({})),
        ] {
            assert_eq!(unkeyed(keyed(&before)), before);
            assert_eq!(merge(&before, [difference(&keyed(&before), &keyed(&after))].iter()), after);
        }
    }
}
