//! Patches: merge patches (RFC 7396) and JSON patches (RFC 6902).

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{Answer, bad_request, failure, with_details};

pub(super) fn merge(into: &Value, patch: &Value) -> Result<Value, Answer> {
    if !patch.is_object() {
        let sent = if patch.is_array() { "array" } else { "value" };
        let message = format!(
            "error decoding patch: json: cannot unmarshal {sent} into Go value of type map[string]interface {{}}"
        );
        return Err(bad_request(&message));
    }
    let mut merged = into.clone();
    json_patch::merge(&mut merged, patch);
    Ok(merged)
}

pub(super) fn json(into: &Value, patch: &Value) -> Result<Value, Answer> {
    let operations: json_patch::Patch = serde_json::from_value(patch.clone()).map_err(|error| match patch {
        Value::Object(_) => bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ),
        _ => bad_request(&format!("error decoding patch: {error}")),
    })?;
    let mut patched = into.clone();
    json_patch::patch(&mut patched, &operations).map_err(|_| {
        let message = "the server rejected our request due to an error in our request";
        with_details(failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message), json!({}))
    })?;
    Ok(patched)
}
