//! Removes the fields that a schema does not know.

use serde_json::Value;

use super::{OBJECT_FIELDS, is_set, keeps_unknown_fields, of_field};

/// Removes the unknown fields of an object that has metadata.
pub(crate) fn prune_object(object: &mut Value, schema: &Value) {
    prune(object, schema, &OBJECT_FIELDS);
}

fn prune(value: &mut Value, schema: &Value, always_known: &[&str]) {
    match value {
        Value::Object(fields) => {
            let keeps_unknown = keeps_unknown_fields(schema);
            fields.retain(|name, value| {
                if always_known.contains(&name.as_str()) {
                    return true;
                }
                let Some(schema) = of_field(schema, name) else { return keeps_unknown };
                prune_field(value, schema);
                true
            });
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| prune_field(item, schema));
            }
        }
        _ => {}
    }
}

fn prune_field(value: &mut Value, schema: &Value) {
    let is_object = is_set(schema, "x-kubernetes-embedded-resource");
    prune(value, schema, if is_object { &OBJECT_FIELDS } else { &[] });
}
