//! Decodes the JSON of a cached object, and explains why it cannot be decoded.

use std::panic;

use kube::discovery::ApiResource;
use serde::de::DeserializeOwned;

use super::{json_path::JsonPath, text};
use crate::client::decoded;

/// Decodes a whole object. The error names the place in the object and the cause.
///
/// Nothing but the names of its entries is quoted of a Secret.
pub(super) fn decode<K: DeserializeOwned>(json: &[u8], kind: &ApiResource) -> Result<K, String> {
    let object = panic::catch_unwind(|| decoded(json)).map_err(|_| "its decoding panicked")?;
    object.map_err(|error| explain_at(json, &error, kind))
}

/// Replaces serde's line and column by the path in the object: the reader does not have this text.
fn explain_at(json: &[u8], error: &serde_json::Error, kind: &ApiResource) -> String {
    // The text is one line, in which a column is an offset.
    let read = json.get(..error.column()).filter(|_| error.line() == 1).map(text).unwrap_or_default();
    let path = JsonPath::at_the_end_of(read);
    let path = if is_secret(kind) { path.truncated(2) } else { path }.to_string();
    let message = explain(error, kind);
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") }
}

/// The text of the error. serde quotes the value that it could not read, which must not happen for a Secret.
pub(crate) fn explain(error: &serde_json::Error, kind: &ApiResource) -> String {
    if is_secret(kind) { "a value of the wrong form".into() } else { error.to_string() }
}

fn is_secret(kind: &ApiResource) -> bool {
    kind.kind == "Secret"
}
