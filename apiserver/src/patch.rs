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
    json_patch::merge(&mut merged, patch);
    Ok(merged)
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
