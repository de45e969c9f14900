//! What must hold of a webhook's answers, whatever it is sent.

mod edits;
mod kinds;
mod reviews;

use std::sync::LazyLock;

use kube::core::{
    DynamicObject,
    admission::{AdmissionResponse, AdmissionReview},
};
use reknit_webhook::Webhook;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

pub use reviews::seeds;

const PATHS: [&str; 4] =
    ["/defaulting", "/resource-validation", "/config-validation", "/resource-conversion"];

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().unwrap());
static WEBHOOK: LazyLock<Webhook> = LazyLock::new(kinds::webhook);

/// Sends a body to every path. The input is the body itself, or, where it begins with a byte below that of any text, a review and
/// edits of its JSON.
///
/// # Panics
///
/// When an answer is not as it has to be.
pub fn check(input: &[u8]) {
    let body = match input {
        [choice, edits @ ..] if *choice < b'\t' => {
            edits::edited(usize::from(*choice), edits).to_string().into_bytes()
        }
        _ => input.to_vec(),
    };
    for path in PATHS {
        let (code, said) = RUNTIME.block_on(WEBHOOK.answer(path, body.clone()));
        match code {
            200 if path == "/resource-conversion" => converted(&body, &said),
            200 => reviewed(path, &body, &said),
            400 => assert!(said.starts_with(b"could not decode body: "), "{path}: {}", text(&said)),
            _ => panic!("{path}: {code} {}\n{}", text(&said), text(&body)),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// It answers what was asked, and a patch changes what has to be changed, and nothing else.
fn reviewed(path: &str, body: &[u8], said: &[u8]) {
    let review: AdmissionReview<DynamicObject> = serde_json::from_slice(said).unwrap();
    let response = review.response.unwrap();
    // A lone surrogate in a field that nobody reads is not found.
    let Ok(asked) = serde_json::from_slice::<Value>(body) else { return };
    assert_eq!(asked["request"]["uid"], response.uid);
    assert_eq!(response.allowed, response.result.code != 400);
    if let Some(patch) = &response.patch {
        assert_eq!((path, response.allowed), ("/defaulting", true));
        patched(asked, patch);
    }
}

fn patched(mut asked: Value, patch: &[u8]) {
    let patch: json_patch::Patch = serde_json::from_slice(patch).unwrap();
    let before = asked["request"]["object"].clone();
    let object = &mut asked["request"]["object"];
    json_patch::patch(object, &patch).unwrap();
    assert_eq!(
        without_what_is_filled_in(before.clone()),
        without_what_is_filled_in(object.clone()),
        "{before}"
    );
    let again = defaulted(&asked);
    assert!(again.allowed && again.patch.is_none(), "{asked}: {again:?}");
}

fn defaulted(asked: &Value) -> AdmissionResponse {
    let (code, said) = RUNTIME.block_on(WEBHOOK.answer("/defaulting", asked.to_string()));
    assert_eq!(code, 200, "{}", text(&said));
    serde_json::from_slice::<AdmissionReview<DynamicObject>>(&said).unwrap().response.unwrap()
}

fn without_what_is_filled_in(mut object: Value) -> Value {
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.retain(|field, value| !matches!(&**field, "watts" | "owner") || value.is_null());
        spec.retain(|_, value| !value.is_null());
    }
    let mut metadata = object["metadata"].take();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !name.starts_with("fuzz.reknit.dev/"));
    }
    if metadata["annotations"] == json!({}) {
        metadata["annotations"] = Value::Null;
    }
    if let Some(fields) = metadata.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    object["metadata"] = if metadata == json!({}) { Value::Null } else { metadata };
    object
}

/// As many objects as were sent, or none and the reason.
fn converted(body: &[u8], said: &[u8]) {
    let said: Value = serde_json::from_slice(said).unwrap();
    let Ok(asked) = serde_json::from_slice::<Value>(body) else { return };
    assert_eq!(asked["request"]["uid"], said["response"]["uid"]);
    let count = |list: &Value| list.as_array().map_or(0, Vec::len);
    match said["response"]["result"]["status"].as_str() {
        Some("Success") => {
            assert_eq!(count(&asked["request"]["objects"]), count(&said["response"]["convertedObjects"]));
        }
        _ => assert_ne!(said["response"]["result"]["message"], Value::Null),
    }
}
