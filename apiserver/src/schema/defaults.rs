//! Sets the defaults of a schema.

use serde_json::{Map, Value};

use super::{is_set, of_field};

/// Sets the defaults of absent fields, at any depth. A null that the schema does not allow counts as absent.
pub(crate) fn set_defaults(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                let schema = of_field(schema, name);
                schema.is_none_or(|schema| !is_refused_null(value, schema) || schema.get("default").is_some())
            });
            insert_defaults(fields, schema);
            for (name, value) in fields {
                if let Some(schema) = of_field(schema, name) {
                    set_defaults(value, schema);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            items.iter_mut().for_each(|item| set_defaults(item, schema));
        }
        _ => {}
    }
}

fn insert_defaults(fields: &mut Map<String, Value>, schema: &Value) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    for (name, schema) in properties {
        let is_absent = fields.get(name).is_none_or(|value| is_refused_null(value, schema));
        if let (Some(default), true) = (schema.get("default"), is_absent) {
            fields.insert(name.clone(), default.clone());
        }
    }
}

fn is_refused_null(value: &Value, schema: &Value) -> bool {
    value.is_null() && !is_set(schema, "nullable")
}
