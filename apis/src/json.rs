//! The JSON of an object as it is sent to the API server.

use std::borrow::Cow;

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

/// Returns the key of a map as JSON has it.
fn key(serialized: &Serialized) -> Option<Cow<'_, str>> {
    Some(match serialized {
        Serialized::String(text) => text.into(),
        Serialized::Newtype(inner) => return key(inner),
        Serialized::Bool(value) => value.to_string().into(),
        Serialized::Char(value) => value.to_string().into(),
        Serialized::U8(value) => value.to_string().into(),
        Serialized::U16(value) => value.to_string().into(),
        Serialized::U32(value) => value.to_string().into(),
        Serialized::U64(value) => value.to_string().into(),
        Serialized::I8(value) => value.to_string().into(),
        Serialized::I16(value) => value.to_string().into(),
        Serialized::I32(value) => value.to_string().into(),
        Serialized::I64(value) => value.to_string().into(),
        _ => return None,
    })
}

/// Removes the nulls that are unset `Option` fields, which `serialized` distinguishes from other nulls.
fn remove_unset(json: &mut Value, serialized: &Serialized) {
    match (json, serialized) {
        (json, Serialized::Option(Some(inner)) | Serialized::Newtype(inner)) => remove_unset(json, inner),
        (Value::Object(fields), Serialized::Map(serialized)) => {
            for (name, value) in serialized {
                let Some(name) = key(name) else { continue };
                if matches!(value, Serialized::Option(None)) {
                    fields.remove(&*name);
                } else if let Some(field) = fields.get_mut(&*name) {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[derive(Serialize)]
    struct Zone {
        size: Option<u32>,
    }

    #[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
    struct Name(&'static str);

    #[test]
    fn unset_fields_are_removed_below_keys_of_any_type() {
        let zone = || Zone { size: None };
        assert_eq!(to_json(&BTreeMap::from([(Name("a"), zone())])).unwrap(), json!({"a": {}}));
        assert_eq!(to_json(&BTreeMap::from([(-7_i64, zone())])).unwrap(), json!({"-7": {}}));
        assert_eq!(to_json(&BTreeMap::from([(true, zone())])).unwrap(), json!({"true": {}}));
    }
}
