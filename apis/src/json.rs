//! The JSON of an object as it is sent to the API server.

use serde::{Serialize, ser::Error as _};
use serde_json::Value;
use serde_value::Value as Serialized;

/// Serializes an object without its unset `Option` fields.
///
/// They would serialize to null, which the API server refuses for an enum, for example, and which in a patch takes the
/// field from its manager. A null in free-form JSON, such as a [`Value`], is kept.
///
/// ```
/// use reknit_apis::to_json;
/// use serde::Serialize;
/// use serde_json::{Value, json};
///
/// #[derive(Serialize)]
/// struct Chart {
///     name: Option<String>,
///     values: Value,
/// }
///
/// let chart = Chart { name: None, values: json!({"replicas": null}) };
/// assert_eq!(to_json(&chart)?, json!({"values": {"replicas": null}}));
/// # Ok::<_, serde_json::Error>(())
/// ```
///
/// # Errors
///
/// Returns the error of a value that does not serialize to JSON.
pub fn to_json(object: &(impl Serialize + ?Sized)) -> serde_json::Result<Value> {
    let mut json = serde_json::to_value(object)?;
    if has_null(&json) {
        remove_unset(&mut json, &serde_value::to_value(object).map_err(serde_json::Error::custom)?);
    }
    Ok(json)
}

/// Most objects have none, and need not be serialized a second time.
fn has_null(json: &Value) -> bool {
    match json {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}

/// Removes the nulls that are unset `Option` fields, which `serialized` distinguishes from other nulls.
fn remove_unset(json: &mut Value, serialized: &Serialized) {
    match (json, serialized) {
        (json, Serialized::Option(Some(inner)) | Serialized::Newtype(inner)) => remove_unset(json, inner),
        (Value::Object(fields), Serialized::Map(serialized)) => {
            for (name, value) in serialized {
                let Serialized::String(name) = name else { continue };
                if matches!(value, Serialized::Option(None)) {
                    fields.remove(name);
                } else if let Some(field) = fields.get_mut(name) {
                    remove_unset(field, value);
                }
            }
        }
        (Value::Array(items), Serialized::Seq(serialized)) => {
            items.iter_mut().zip(serialized).for_each(|(item, serialized)| remove_unset(item, serialized));
        }
        _ => {}
    }
}
