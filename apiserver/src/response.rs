//! Responses of the API server that are a `Status`: errors, and the success of a deletion.

use std::sync::Arc;

use http::StatusCode;
use kube::core::response::reason;
use serde_json::{Map, Value, json};

use crate::collection::{Collection, qualified};

/// The status code and the body of a response.
pub(crate) type Response = (StatusCode, Arc<Value>);

const OBJECT_MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

pub(crate) fn failure(code: StatusCode, reason: &str, message: &str) -> Response {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": code.as_u16(),
    });
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    (code, Arc::new(status))
}

pub(crate) fn bad_request(message: &str) -> Response {
    failure(StatusCode::BAD_REQUEST, "BadRequest", message)
}

/// The response to a request that only the real API server supports.
pub(crate) fn not_supported(what: &str) -> Response {
    let message =
        format!("the API server in memory does not support {what}: a test of that needs a real one");
    failure(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &message)
}

pub(crate) fn no_such_resource() -> Response {
    let response =
        failure(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
    with_details(response, json!({}))
}

pub(crate) fn method_not_allowed() -> Response {
    let message = "the server does not allow this method on the requested resource";
    with_details(failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message), json!({}))
}

/// The response to a request that the API server fails to carry out.
pub(crate) fn internal_error(cause: &str) -> Response {
    let response = failure(
        StatusCode::INTERNAL_SERVER_ERROR,
        "InternalError",
        &format!("Internal error occurred: {cause}"),
    );
    with_details(response, json!({ "causes": [{ "message": cause }] }))
}

pub(crate) fn not_found(collection: &Collection, name: &str) -> Response {
    let message = format!("{} {name:?} not found", collection.full_resource());
    with_object(collection, name, failure(StatusCode::NOT_FOUND, "NotFound", &message))
}

pub(crate) fn already_exists(collection: &Collection, name: &str, old: &Value) -> Response {
    let prefix =
        if old["metadata"]["deletionTimestamp"].is_null() { "" } else { "object is being deleted: " };
    let message = format!("{prefix}{} {name:?} already exists", collection.full_resource());
    with_object(collection, name, failure(StatusCode::CONFLICT, "AlreadyExists", &message))
}

pub(crate) fn stale_version(collection: &Collection, name: &str) -> Response {
    conflict(collection, name, OBJECT_MODIFIED)
}

pub(crate) fn conflict(collection: &Collection, name: &str, cause: &str) -> Response {
    let resource = collection.full_resource();
    let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {cause}");
    with_object(collection, name, failure(StatusCode::CONFLICT, "Conflict", &message))
}

/// The response to a resourceVersion whose history was compacted away.
pub(crate) fn expired(message: &str) -> Response {
    failure(StatusCode::GONE, reason::EXPIRED, message)
}

/// The response to a resourceVersion that the server has not reached.
pub(crate) fn too_large_version(requested: u64, latest: u64) -> Response {
    let message = format!("Timeout: Too large resource version: {requested}, current: {latest}");
    let cause = json!({ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" });
    let details = json!({ "causes": [cause], "retryAfterSeconds": 1 });
    with_details(failure(StatusCode::GATEWAY_TIMEOUT, reason::TIMEOUT, &message), details)
}

/// The conflict with a precondition of a delete. Unlike [`conflict`] it names the Kind, not the resource.
pub(crate) fn precondition_failed(collection: &Collection, kind: &str, name: &str, cause: &str) -> Response {
    let group = &collection.group;
    let message = format!("Operation cannot be fulfilled on {} {name:?}: {cause}", qualified(kind, group));
    with_details(failure(StatusCode::CONFLICT, "Conflict", &message), details(group, kind, name))
}

/// An invalid field and the error that the API server reports for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    /// For example `FieldValueRequired`.
    pub(crate) reason: &'static str,
    /// For example `Required value: name or generateName is required`.
    pub(crate) message: String,
}

impl FieldError {
    pub(crate) fn new(field: &str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { field: field.into(), reason, message: message.into() }
    }
}

pub(crate) fn invalid(group: &str, kind: &str, name: &str, error: FieldError) -> Response {
    all_invalid(group, kind, name, &[error])
}

/// The response to an object with these invalid fields.
pub(crate) fn all_invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Response {
    let described: Vec<_> =
        errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
    let described = match described.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    let message = format!("{} {name:?} is invalid: {described}", qualified(kind, group));
    let cause = |error: &FieldError| json!({ "reason": error.reason, "message": error.message, "field": error.field });
    let mut details = details(group, kind, name);
    details["causes"] = errors.iter().map(cause).collect();
    with_details(failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &message), details)
}

pub(crate) fn immutable_field(
    collection: &Collection,
    kind: &str,
    name: &str,
    field: &str,
    value: &Value,
) -> Response {
    let message = format!("Invalid value: {value}: field is immutable");
    let error = FieldError::new(field, "FieldValueInvalid", message);
    invalid(&collection.group, kind, name, error)
}

pub(crate) fn deletion_status(collection: &Collection, name: &str, uid: &Value) -> Response {
    let mut details = details(&collection.group, &collection.plural, name);
    if uid.is_string() {
        details["uid"] = uid.clone();
    }
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    (StatusCode::OK, Arc::new(status))
}

pub(crate) fn with_details((code, mut status): Response, details: Value) -> Response {
    Arc::make_mut(&mut status)["details"] = details;
    (code, status)
}

/// Adds causes to the details.
pub(crate) fn with_causes((code, mut status): Response, causes: Value) -> Response {
    Arc::make_mut(&mut status)["details"]["causes"] = causes;
    (code, status)
}

/// Adds the details that name the requested object.
pub(crate) fn with_object(collection: &Collection, name: &str, response: Response) -> Response {
    with_details(response, details(&collection.group, &collection.plural, name))
}

fn details(group: &str, kind: &str, name: &str) -> Value {
    let all = [("name", name), ("group", group), ("kind", kind)];
    let non_empty = all.into_iter().filter(|(_, text)| !text.is_empty());
    Value::Object(non_empty.map(|(field, text)| (field.to_owned(), json!(text))).collect::<Map<_, _>>())
}
