//! Patches: merge patches (RFC 7396) and JSON patches (RFC 6902).

use http::StatusCode;
use serde_json::{Value, json};

use crate::response::{Response, bad_request, failure, with_details};

pub(crate) fn merge(object: &Value, patch: &Value) -> Result<Value, Response> {
    if !patch.is_object() {
        let json_type = if patch.is_array() { "array" } else { "value" };
        let message = format!(
            "error decoding patch: json: cannot unmarshal {json_type} into Go value of type map[string]interface {{}}"
        );
        return Err(bad_request(&message));
    }
    let mut merged = object.clone();
    json_patch::merge(&mut merged, &without_nulls_in_lists(patch.clone(), false));
    Ok(merged)
}

/// Removes the null fields of the items of lists, as the API server does.
fn without_nulls_in_lists(patch: Value, is_in_list: bool) -> Value {
    match patch {
        Value::Array(items) => items.into_iter().map(|item| without_nulls_in_lists(item, true)).collect(),
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, value)| !(is_in_list && value.is_null()));
            Value::Object(
                kept.map(|(name, value)| (name, without_nulls_in_lists(value, is_in_list))).collect(),
            )
        }
        other => other,
    }
}

pub(crate) fn json(object: &Value, patch: &Value) -> Result<Value, Response> {
    let operations: json_patch::Patch = serde_json::from_value(patch.clone()).map_err(|error| match patch {
        Value::Object(_) => bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ),
        _ => bad_request(&format!("error decoding patch: {error}")),
    })?;
    let mut patched = object.clone();
    json_patch::patch(&mut patched, &operations).map_err(|_| {
        let message = "the server rejected our request due to an error in our request";
        with_details(failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message), json!({}))
    })?;
    Ok(patched)
}
