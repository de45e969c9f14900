//! Decodes the JSON of a cached object. Errors name the path of the value.

use std::panic;

use kube::discovery::ApiResource;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

use crate::{redaction::Redaction, shallow::decode_object};

/// The maximum number of steps in the path of a Secret's value, such as `data.password`. Further steps could reveal a
/// part of the secret.
const SECRET_PATH_STEPS: usize = 2;

/// The error about a value that is not shown.
const WRONG_FORM: &str = "a value of the wrong form";

/// Decodes a whole object. The error names the path of the value and the cause.
///
/// The error of a Secret contains the names of its fields, but no values. Nor does that of a field that is hidden.
pub(super) fn decode<K: DeserializeOwned>(
    json: &str,
    kind: &ApiResource,
    redaction: &Redaction,
) -> Result<K, String> {
    let decode =
        || decode_object(json).map_err(|error| explain_with_path::<K>(json, &error, kind, redaction));
    panic::catch_unwind(decode).map_err(|_| "its decoding panicked".to_owned()).flatten()
}

/// Replaces serde's line and column by the path in the object, since the reader of the error does not have the JSON.
/// Decodes the object again, because a decoder that records the path is slower.
fn explain_with_path<K: DeserializeOwned>(
    json: &str,
    error: &serde_json::Error,
    kind: &ApiResource,
    redaction: &Redaction,
) -> String {
    let decoded = serde_path_to_error::deserialize::<_, K>(&mut serde_json::Deserializer::from_str(json));
    let steps = if is_secret(kind) { SECRET_PATH_STEPS } else { usize::MAX };
    let decoded = decoded.err();
    let segments = || decoded.iter().flat_map(|error| error.path().iter());
    let pointer: Vec<_> = segments().map(pointer_segment).collect();
    let message = explain(error, kind);
    // A flattened field has the path of the object around it.
    let is_hidden = !pointer.is_empty() && redaction.hides_path(false, &pointer);
    let message =
        if is_hidden && !message.starts_with("missing field") { WRONG_FORM.into() } else { message };
    let path = path_text(segments().take(steps));
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") }
}

/// Formats a path, such as `metadata.labels[example.com/x]` or `spec.ports[0].name`.
fn path_text<'a>(segments: impl Iterator<Item = &'a Segment>) -> String {
    let is_plain =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    segments.fold(String::new(), |path, segment| match segment {
        Segment::Seq { index } => format!("{path}[{index}]"),
        Segment::Map { key } if !is_plain(key) => format!("{path}[{key}]"),
        Segment::Map { key: name } | Segment::Enum { variant: name } if path.is_empty() => name.clone(),
        Segment::Map { key: name } | Segment::Enum { variant: name } => format!("{path}.{name}"),
        Segment::Unknown => path,
    })
}

fn pointer_segment(segment: &Segment) -> String {
    match segment {
        Segment::Seq { index } => index.to_string(),
        other => other.to_string(),
    }
}

/// The text of the error. For a Secret, a text without values, since serde quotes the value that it could not read.
pub(crate) fn explain(error: &serde_json::Error, kind: &ApiResource) -> String {
    if is_secret(kind) { WRONG_FORM.into() } else { error.to_string() }
}

fn is_secret(kind: &ApiResource) -> bool {
    kind.kind == "Secret"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only the errors of decoding are read")]
    struct Decoded {
        metadata: BTreeMap<String, BTreeMap<String, String>>,
        #[serde(default)]
        b: Vec<BTreeMap<String, Vec<u8>>>,
    }

    fn error(json: &str, kind: &str) -> String {
        let kind = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("", "v1", kind));
        decode::<Decoded>(json, &kind, &Redaction::default()).unwrap_err()
    }

    #[test]
    fn the_error_of_a_hidden_field_has_no_value() {
        let redaction = Redaction::default();
        redaction.set(&["/b/*/token".into()]);
        let kind = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("", "v1", "Lamp"));
        let error = |json: &str| decode::<Decoded>(json, &kind, &redaction).unwrap_err();
        let hidden = r#"{"metadata":{},"b":[{"token":[1,777]}]}"#;
        assert_eq!(error(hidden), "b[0].token[1]: a value of the wrong form");
        let other = r#"{"metadata":{},"b":[{"other":[1,777]}]}"#;
        assert!(error(other).contains("777"));
    }

    #[test]
    fn an_error_names_the_fields_and_items_that_lead_to_the_value() {
        for (json, expected) in [
            (r#"{"b":[]}"#, "missing field `metadata`"),
            (
                r#"{"metadata":{"labels":{"example.com/x":1}}}"#,
                "metadata.labels[example.com/x]: invalid type: integer `1`, expected a string",
            ),
            (
                r#"{"metadata":{},"b":[{},{"c":[1,true]}]}"#,
                "b[1].c[1]: invalid type: boolean `true`, expected u8",
            ),
        ] {
            assert_eq!(error(json, "ConfigMap"), expected);
        }
        let secret = r#"{"metadata":{},"b":[{"password":["x"]}]}"#;
        assert_eq!(error(secret, "Secret"), "b[0]: a value of the wrong form");
    }
}
