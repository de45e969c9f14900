//! Properties that the webhook's response to every request must have, and what is read from the API server and from URLs.

mod bindings;
mod edits;
mod kinds;
mod reviews;

use std::sync::LazyLock;

use kube::core::{
    DynamicObject,
    admission::{AdmissionResponse, AdmissionReview},
};
use reknit_apis::Key;
use reknit_injection::internal::{read_page, read_watch};
use reknit_knative::Url;
use reknit_webhook::{Webhook, internal::answer};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

pub use reviews::{URLS, pages, seeds, watches};

const PATHS: [&str; 5] =
    ["/defaulting", "/resource-validation", "/config-validation", "/resource-conversion", "/bindings"];

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().unwrap());
static WEBHOOK: LazyLock<Webhook> = LazyLock::new(|| {
    let _entered = RUNTIME.enter();
    kinds::webhook()
});

/// Sends a body to every path and checks the responses. If the first byte of the input is less than a tab, it selects a
/// seed together with the next byte, and the other bytes choose its edits. Otherwise the input is the body itself. No JSON text starts with a byte
/// below a tab.
///
/// # Panics
///
/// Panics if a response violates a property.
pub fn check(input: &[u8]) {
    let body = match input {
        [choice, more, edits @ ..] if *choice < b'\t' => {
            edits::edited(usize::from(*choice) + usize::from(*more), edits).to_string().into_bytes()
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

/// Checks that the response belongs to the request, that a denial of an invalid object has causes, and that only allowed
/// responses of /defaulting and /bindings have a patch.
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
        assert!(response.allowed);
        match path {
            "/defaulting" => check_patch(request, patch),
            "/bindings" => check_binding(request, patch),
            _ => panic!("a patch of {path}"),
        }
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

/// Checks that the patch changes only the labels and the template, tells nothing of the binding in another namespace, and
/// that the patched object, sent again, gets no second patch.
fn check_binding(mut request: Value, patch: &[u8]) {
    let namespace = request["request"]["object"]["metadata"]["namespace"].clone();
    assert!(namespace == "secret" || !text(patch).contains("uid-secret"), "{}", text(patch));
    let patch: json_patch::Patch = serde_json::from_slice(patch).unwrap();
    let without_binding = |mut object: Value| {
        object["spec"]["template"] = Value::Null;
        object["metadata"]["labels"] = Value::Null;
        object
    };
    let before = request["request"]["object"].clone();
    json_patch::patch(&mut request["request"]["object"], &patch).unwrap();
    let object = &request["request"]["object"];
    assert_eq!(without_binding(before.clone()), without_binding(object.clone()), "{before}");
    let (code, response) = RUNTIME.block_on(answer(&WEBHOOK, "/bindings", request.to_string()));
    let review: AdmissionReview<DynamicObject> = serde_json::from_slice(&response).unwrap();
    assert!(code == 200 && review.response.unwrap().patch.is_none(), "{request}: {}", text(&response));
}

/// Reads the input as a watch, cut into frames at different places.
///
/// # Panics
///
/// Panics if the events depend on the frames, or if an object gets another key than serde_json reads.
pub fn check_watch(input: &[u8]) {
    let events = |frame: usize| {
        let frames = input.chunks(frame).map(<[u8]>::to_vec).collect();
        RUNTIME.block_on(read_watch(frames))
    };
    let whole = events(usize::MAX);
    let size = usize::from(input.first().copied().unwrap_or_default()) + 1;
    assert_eq!(events(size), whole, "frames of {size} bytes");
    for (line, event) in input.split(|byte| *byte == b'\n').zip(whole) {
        let (Some((_, key)), Ok(read)) = (event, serde_json::from_slice::<Value>(line)) else { continue };
        assert_is_key(&key, &read["object"], line);
    }
}

/// Reads the input as a page of a list.
///
/// # Panics
///
/// Panics if the page has other items than serde_json reads, or if one of them gets another key.
pub fn check_page(input: &[u8]) {
    let (Some(keys), Ok(page)) = (read_page(input), serde_json::from_slice::<Value>(input)) else { return };
    let items = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Of two fields `items`, serde_json keeps the last one.
    let keys = keys.len().checked_sub(items.len()).map(|first| &keys[first..]);
    let keys = keys.unwrap_or_else(|| panic!("items are missing: {}", text(input)));
    for (key, item) in keys.iter().zip(items) {
        if let Some(key) = key {
            assert_is_key(key, item, input);
        }
    }
}

fn assert_is_key(key: &Key, object: &Value, input: &[u8]) {
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    let read = (field("namespace"), field("name"));
    assert_eq!((key.namespace.as_deref().unwrap_or_default(), &*key.name), read, "{}", text(input));
}

/// Parses the input as a URL and as a reference, two lines.
///
/// # Panics
///
/// Panics if a URL reads otherwise than it is written, or if a reference without an authority leaves the host.
pub fn check_url(input: &[u8]) {
    let input = text(input);
    let (base, reference) = input.split_once('\n').unwrap_or((&input, ""));
    let (Ok(Some(base)), Ok(reference)) = (Url::parse(base), Url::parse(reference)) else { return };
    let written = base.to_string(); // empty for `#`, as in Go
    let read = Url::parse(&written).unwrap().map(|url| url.to_string()).unwrap_or_default();
    assert_eq!(read, written, "{base:?}");
    let Some(reference) = reference else { return };
    let resolved = base.resolve(&reference);
    if !reference.is_absolute() && !reference.to_string().starts_with("//") {
        assert_eq!(
            (resolved.scheme(), resolved.host()),
            (base.scheme(), base.host()),
            "{reference} of {base}"
        );
    }
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
