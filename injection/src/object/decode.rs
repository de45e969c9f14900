//! Decodes the JSON of a cached object. Errors name the path of the value.

use std::panic;

use kube::discovery::ApiResource;
use serde::de::DeserializeOwned;

use super::{json_path::JsonPath, text};
use crate::client::decode_json;

/// The maximum number of steps in the path of a Secret's value, such as `data.password`. Further steps could reveal a
/// part of the secret.
const SECRET_PATH_STEPS: usize = 2;

/// Decodes a whole object. The error names the path of the value and the cause.
///
/// The error of a Secret contains the names of its fields, but no values.
pub(super) fn decode<K: DeserializeOwned>(json: &[u8], kind: &ApiResource) -> Result<K, String> {
    let object = panic::catch_unwind(|| decode_json(json)).map_err(|_| "its decoding panicked")?;
    object.map_err(|error| explain_with_path(json, &error, kind))
}

/// Replaces serde's line and column by the path in the object, since the reader of the error does not have the JSON.
fn explain_with_path(json: &[u8], error: &serde_json::Error, kind: &ApiResource) -> String {
    // The JSON is one line, so the column is an offset.
    let text_before_error =
        json.get(..error.column()).filter(|_| error.line() == 1).map(text).unwrap_or_default();
    let path = JsonPath::at_the_end_of(text_before_error);
    let path = if is_secret(kind) { path.truncated(SECRET_PATH_STEPS) } else { path }.to_string();
    let message = explain(error, kind);
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") }
}

/// The text of the error. For a Secret, a text without values, since serde quotes the value that it could not read.
pub(crate) fn explain(error: &serde_json::Error, kind: &ApiResource) -> String {
    if is_secret(kind) { "a value of the wrong form".into() } else { error.to_string() }
}

fn is_secret(kind: &ApiResource) -> bool {
    kind.kind == "Secret"
}
