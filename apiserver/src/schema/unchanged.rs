//! Comparison of a value with the one before an update (KEP-4008).

use serde_json::Value;

use super::{list_types::keys_of, of_field};

/// Returns true if both values are the same. As for the API server, an object with a field that its schema does not know is
/// never the same, and the order of a list of type map does not matter.
pub(super) fn is_unchanged(old: &Value, new: &Value, schema: &Value) -> bool {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            old.len() == new.len()
                && new.iter().all(|(name, new)| match (old.get(name), of_field(schema, name)) {
                    (Some(old), Some(schema)) => is_unchanged(old, new, schema),
                    _ => false,
                })
        }
        (Value::Array(old_items), Value::Array(items)) if is_map(schema) => {
            old_items.len() == items.len()
                && items.iter().all(|item| {
                    old_item(old, item, schema).is_some_and(|old| is_unchanged(old, item, &schema["items"]))
                })
        }
        (old, new) => old == new,
    }
}

/// The item of the old list that an item of the new one replaces: the one with the same keys. Other lists than maps are
/// compared as a whole.
pub(super) fn old_item<'a>(old: &'a Value, item: &Value, schema: &Value) -> Option<&'a Value> {
    let mut items = old.as_array().filter(|_| is_map(schema))?.iter();
    let keys = keys_of(item, schema);
    items.find(|old| keys_of(old, schema) == keys)
}

fn is_map(schema: &Value) -> bool {
    schema["x-kubernetes-list-type"] == "map"
}
