//! JSON of any depth. serde_json refuses values that are nested deeper than 128 levels, and the API server stores them.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Value, value::RawValue};

/// The number of levels that are kept of a value that is nested too deep.
const MAX_DEPTH: usize = 100;

/// The fields of an object as they are written.
pub type RawFields<'a> = BTreeMap<String, &'a RawValue>;

/// Decodes an object. If it is nested too deep, what lies deeper than a limit in its metadata and its status is null.
/// The metadata is as deep as the rest of the object, because of its `managedFields`.
pub fn decode_object<T: DeserializeOwned>(json: &str) -> serde_json::Result<T> {
    decode_or_cut(json, cut_object)
}

/// Decodes a value. If it is nested too deep, what lies deeper than a limit is null.
pub fn decode_value<T: DeserializeOwned>(json: &str) -> serde_json::Result<T> {
    decode_or_cut(json, |json| Ok(cut(json)))
}

/// Decodes a text, or what `cut` leaves of it if it is nested too deep.
fn decode_or_cut<T: DeserializeOwned>(
    json: &str,
    cut: impl FnOnce(&str) -> serde_json::Result<String>,
) -> serde_json::Result<T> {
    match serde_json::from_str(json) {
        Err(error) if error.to_string().contains("recursion limit exceeded") => {
            cut(json).and_then(|cut| serde_json::from_str(&cut)).map_err(|_| error)
        }
        result => result,
    }
}

/// Returns true if the value has as many levels as are kept of one that is nested too deep: it may come from such a value,
/// without what lies deeper.
pub fn may_be_cut(value: &Value) -> bool {
    fn levels(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or_default(),
            Value::Object(fields) => 1 + fields.values().map(levels).max().unwrap_or_default(),
            _ => 0,
        }
    }
    levels(value) == MAX_DEPTH
}

/// Returns the JSON of an object with null for what lies too deep in its metadata and its status.
pub fn cut_object(json: &str) -> serde_json::Result<String> {
    let mut fields: RawFields<'_> = serde_json::from_str(json)?;
    let cut_field = |name: &str| Some((name.to_owned(), cut(fields.get(name)?.get())));
    let cut_fields: Vec<_> = ["metadata", "status"].into_iter().filter_map(cut_field).collect();
    for (name, value) in &cut_fields {
        fields.insert(name.clone(), serde_json::from_str(value)?);
    }
    serde_json::to_string(&fields)
}

/// Returns the first levels of a value. An object or a list at the next level is null.
fn cut(json: &str) -> String {
    let (mut kept, mut depth, mut is_string, mut is_escaped) = (String::new(), 0_usize, false, false);
    for char in json.chars() {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_string = !is_string,
            '{' | '[' if !is_string => {
                if depth == MAX_DEPTH {
                    kept.push_str("null");
                }
                depth += 1;
            }
            '}' | ']' if !is_string => {
                depth = depth.saturating_sub(1);
                if depth == MAX_DEPTH {
                    continue;
                }
            }
            _ => {}
        }
        if depth <= MAX_DEPTH {
            kept.push(char);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use kube::api::{DynamicObject, ObjectMeta};
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize)]
    struct OnlyMetadata {
        metadata: ObjectMeta,
    }

    #[test]
    fn an_object_is_decoded_however_deep_its_managed_fields_and_its_status_are_nested() {
        for levels in (110..140).chain([9000]) {
            let deep = format!(r#"{}{{}}{}"#, r#"{"f:a":"#.repeat(levels), "}".repeat(levels));
            let fields =
                format!(r#"{{"f:metadata": {{"f:finalizers": {{"v:\"a\"": {{}}}}}}, "f:status": {deep}}}"#);
            let metadata = format!(r#"{{"name": "x", "managedFields": [{{"fieldsV1": {fields}}}]}}"#);
            let json = format!(r#"{{"metadata": {metadata}, "status": {deep}}}"#);
            let OnlyMetadata { metadata } = decode_object(&json).unwrap();
            assert!(decode_object::<DynamicObject>(&json).unwrap().data["status"].is_object());
            assert_eq!(metadata.name.as_deref(), Some("x"));
            let managed = metadata.managed_fields.unwrap();
            let fields = &managed[0].fields_v1.as_ref().unwrap().0;
            assert_eq!(fields["f:metadata"], json!({"f:finalizers": {"v:\"a\"": {}}}));
        }
        let error = decode_object::<OnlyMetadata>(r#"{"metadata": {"name": 1}}"#).err().unwrap();
        assert!(error.to_string().contains("expected a string"), "{error}");
    }

    #[test]
    fn a_value_that_is_nested_too_deep_is_read_down_to_a_limit() {
        let deep = format!("{}1{}", "[".repeat(9000), "]".repeat(9000));
        let text = format!(r#"{{"a": {{"b": [1, -1, 0.5, "x", true, null]}}, "deep": {deep}}}"#);
        let value = decode_value::<Value>(&text).unwrap();
        assert_eq!(value["a"], json!({"b": [1, -1, 0.5, "x", true, null]}));
        let mut levels = std::iter::successors(Some(&value["deep"]), |value| value.get(0));
        assert_eq!(levels.by_ref().filter(|value| value.is_array()).count(), MAX_DEPTH - 1);
        assert!(may_be_cut(&value) && !may_be_cut(&value["a"]) && !may_be_cut(&value["deep"]));
        assert_eq!(decode_value::<Value>("[1]").unwrap(), json!([1]));
    }
}
