//! Responses of the API server that are a `Status`: errors, and the success of a deletion.

use http::StatusCode;
use kube::core::response::reason;
use reknit_injection::Verb;
use serde_json::{Map, Value, json};

use super::{
    collection::{Collection, qualified},
    request::Request,
};

/// The status code and the body of a response.
pub(super) type Response = (StatusCode, Value);

const OBJECT_MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

pub(super) fn failure(code: StatusCode, reason: &str, message: &str) -> Response {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": code.as_u16(),
    });
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    (code, status)
}

/// The response to a request that fails because of [`ApiServer::fail`](super::ApiServer::fail).
pub(super) fn injected_failure(request: &Request, code: StatusCode) -> Response {
    let message = format!("inducing failure for {} {}", request.verb, request.resource());
    failure(code, reason_for(request, code), &message)
}

/// The reason that the API server sends with this code. Clients match on it.
fn reason_for(request: &Request, code: StatusCode) -> &'static str {
    match code.as_u16() {
        400 => reason::BAD_REQUEST,
        401 => reason::UNAUTHORIZED,
        403 => reason::FORBIDDEN,
        404 => reason::NOT_FOUND,
        405 => reason::METHOD_NOT_ALLOWED,
        406 => reason::NOT_ACCEPTABLE,
        409 if request.verb == Verb::Create && request.subresource.is_none() => reason::ALREADY_EXISTS,
        409 => reason::CONFLICT,
        410 => reason::EXPIRED,
        413 => reason::REQUEST_ENTITY_TOO_LARGE,
        415 => reason::UNSUPPORTED_MEDIA_TYPE,
        422 => reason::INVALID,
        429 => reason::TOO_MANY_REQUESTS,
        503 => reason::SERVICE_UNAVAILABLE,
        504 => reason::TIMEOUT,
        500.. => reason::INTERNAL_ERROR,
        _ => reason::UNKNOWN,
    }
}

pub(super) fn bad_request(message: &str) -> Response {
    failure(StatusCode::BAD_REQUEST, "BadRequest", message)
}

/// The response to a request that only the real API server supports.
pub(super) fn not_supported(what: &str) -> Response {
    let message =
        format!("the API server in memory does not support {what}: a test of that needs a ControlPlane");
    failure(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &message)
}

pub(super) fn no_such_resource() -> Response {
    let response =
        failure(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
    with_details(response, json!({}))
}

pub(super) fn not_found(request: &Request, name: &str) -> Response {
    let message = format!("{} {name:?} not found", request.collection.full_resource());
    with_object(request, name, failure(StatusCode::NOT_FOUND, "NotFound", &message))
}

pub(super) fn already_exists(request: &Request, name: &str, old: &Value) -> Response {
    let prefix =
        if old["metadata"]["deletionTimestamp"].is_null() { "" } else { "object is being deleted: " };
    let message = format!("{prefix}{} {name:?} already exists", request.collection.full_resource());
    with_object(request, name, failure(StatusCode::CONFLICT, "AlreadyExists", &message))
}

pub(super) fn stale_version(request: &Request, name: &str) -> Response {
    conflict(request, name, OBJECT_MODIFIED)
}

pub(super) fn conflict(request: &Request, name: &str, cause: &str) -> Response {
    let resource = request.collection.full_resource();
    let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {cause}");
    with_object(request, name, failure(StatusCode::CONFLICT, "Conflict", &message))
}

/// The conflict with a precondition of a delete. Unlike [`conflict`] it names the Kind, not the resource.
pub(super) fn precondition_failed(request: &Request, kind: &str, name: &str, cause: &str) -> Response {
    let group = &request.collection.group;
    let message = format!("Operation cannot be fulfilled on {} {name:?}: {cause}", qualified(kind, group));
    with_details(failure(StatusCode::CONFLICT, "Conflict", &message), details(group, kind, name))
}

/// An invalid field and the error that the API server reports for it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FieldError {
    pub(super) field: String,
    /// For example `FieldValueRequired`.
    pub(super) reason: &'static str,
    /// For example `Required value: name or generateName is required`.
    pub(super) message: String,
}

pub(super) fn invalid(group: &str, kind: &str, name: &str, error: FieldError) -> Response {
    all_invalid(group, kind, name, &[error])
}

/// The response to an object with these invalid fields.
pub(super) fn all_invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Response {
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

pub(super) fn immutable_field(
    collection: &Collection,
    kind: &str,
    name: &str,
    field: &str,
    value: &Value,
) -> Response {
    let message = format!("Invalid value: {value}: field is immutable");
    let error = FieldError { field: field.into(), reason: "FieldValueInvalid", message };
    invalid(&collection.group, kind, name, error)
}

pub(super) fn deletion_status(request: &Request, name: &str, uid: &Value) -> Response {
    let mut details = details(&request.collection.group, &request.collection.plural, name);
    if uid.is_string() {
        details["uid"] = uid.clone();
    }
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    (StatusCode::OK, status)
}

pub(super) fn with_details((code, mut status): Response, details: Value) -> Response {
    status["details"] = details;
    (code, status)
}

/// Adds the details that name the requested object.
fn with_object(request: &Request, name: &str, response: Response) -> Response {
    with_details(response, details(&request.collection.group, &request.collection.plural, name))
}

fn details(group: &str, kind: &str, name: &str) -> Value {
    let all = [("name", name), ("group", group), ("kind", kind)];
    let non_empty = all.into_iter().filter(|(_, text)| !text.is_empty());
    Value::Object(non_empty.map(|(field, text)| (field.to_owned(), json!(text))).collect::<Map<_, _>>())
}
