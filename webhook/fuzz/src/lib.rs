//! Properties that the webhook's response to every request must have.

mod edits;
mod kinds;
mod reviews;

use std::sync::LazyLock;

use kube::core::{
    DynamicObject,
    admission::{AdmissionResponse, AdmissionReview},
};
use reknit_webhook::{Webhook, internal::answer};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

pub use reviews::seeds;

const PATHS: [&str; 4] =
    ["/defaulting", "/resource-validation", "/config-validation", "/resource-conversion"];

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().unwrap());
static WEBHOOK: LazyLock<Webhook> = LazyLock::new(kinds::webhook);

/// Sends a body to every path and checks the responses. If the first byte of the input is less than a tab, it selects a
/// seed, and the other bytes choose its edits. Otherwise the input is the body itself. No JSON text starts with a byte
/// below a tab.
///
/// # Panics
///
/// Panics if a response violates a property.
pub fn check(input: &[u8]) {
    let body = match input {
        [choice, edits @ ..] if *choice < b'\t' => {
            edits::edited(usize::from(*choice), edits).to_string().into_bytes()
        }
        _ => input.to_vec(),
    };
    for path in PATHS {
        let (code, response) = RUNTIME.block_on(answer(&WEBHOOK, path, body.clone()));
        match code {
            200 if path == "/resource-conversion" => check_conversion(&body, &response),
            200 => check_review(path, &body, &response),
            400 => assert!(response.starts_with(b"could not decode body: "), "{path}: {}", text(&response)),
            _ => panic!("{path}: {code} {}\n{}", text(&response), text(&body)),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that the response belongs to the request, that a denial of an invalid object has causes, and that only an
/// allowed /defaulting response has a patch.
fn check_review(path: &str, body: &[u8], response: &[u8]) {
    let review: AdmissionReview<DynamicObject> = serde_json::from_slice(response).unwrap();
    let response = review.response.unwrap();
    // The webhook accepts some bodies that `Value` does not, such as one with a lone surrogate in a field that the
    // webhook does not read.
    let Ok(request) = serde_json::from_slice::<Value>(body) else { return };
    assert_eq!(request["request"]["uid"], response.uid);
    let code = response.result.code;
    assert_eq!(response.allowed, !matches!(code, 400 | 422), "{code}");
    let has_causes = response.result.details.is_some_and(|details| !details.causes.is_empty());
    assert_eq!(has_causes, code == 422);
    if let Some(patch) = &response.patch {
        assert_eq!((path, response.allowed), ("/defaulting", true));
        check_patch(request, patch);
    }
}

/// Checks that the patch changes only defaulted fields, and that the patched object, sent again, gets no second patch.
fn check_patch(mut request: Value, patch: &[u8]) {
    let patch: json_patch::Patch = serde_json::from_slice(patch).unwrap();
    let before = request["request"]["object"].clone();
    let object = &mut request["request"]["object"];
    json_patch::patch(object, &patch).unwrap();
    assert_eq!(without_defaults(before.clone()), without_defaults(object.clone()), "{before}");
    let second_response = send_to_defaulting(&request);
    assert!(second_response.allowed && second_response.patch.is_none(), "{request}: {second_response:?}");
}

fn send_to_defaulting(request: &Value) -> AdmissionResponse {
    let (code, response) = RUNTIME.block_on(answer(&WEBHOOK, "/defaulting", request.to_string()));
    assert_eq!(code, 200, "{}", text(&response));
    serde_json::from_slice::<AdmissionReview<DynamicObject>>(&response).unwrap().response.unwrap()
}

/// Returns the object without the fields that defaulting may set, and without null fields.
fn without_defaults(mut object: Value) -> Value {
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

/// Checks that the response belongs to the request, and that it contains all objects or a failure message.
fn check_conversion(body: &[u8], response: &[u8]) {
    let response: Value = serde_json::from_slice(response).unwrap();
    let Ok(request) = serde_json::from_slice::<Value>(body) else { return };
    assert_eq!(request["request"]["uid"], response["response"]["uid"]);
    let count = |list: &Value| list.as_array().map_or(0, Vec::len);
    match response["response"]["result"]["status"].as_str() {
        Some("Success") => {
            assert_eq!(
                count(&request["request"]["objects"]),
                count(&response["response"]["convertedObjects"])
            );
        }
        _ => assert_ne!(response["response"]["result"]["message"], Value::Null),
    }
}
