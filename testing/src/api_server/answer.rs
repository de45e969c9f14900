//! The error responses of the API server.

use http::StatusCode;
use kube::core::response::reason;
use serde_json::{Map, Value, json};

use super::{
    place::{Place, qualified},
    request::Request,
    write::Verb,
};

pub(super) type Answer = (StatusCode, Value);

const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

pub(super) fn failure(code: StatusCode, reason: &str, message: &str) -> Answer {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": code.as_u16(),
    });
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    (code, status)
}

/// The response to a request that a test makes fail.
pub(super) fn injected(request: &Request, code: StatusCode) -> Answer {
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

pub(super) fn bad_request(message: &str) -> Answer {
    failure(StatusCode::BAD_REQUEST, "BadRequest", message)
}

/// The response to a request that only the real API server supports.
pub(super) fn not_supported(what: &str) -> Answer {
    let message =
        format!("the API server in memory does not support {what}: a test of that needs a ControlPlane");
    failure(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &message)
}

pub(super) fn no_such_resource() -> Answer {
    let answer =
        failure(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
    with_details(answer, json!({}))
}

pub(super) fn not_found(request: &Request, name: &str) -> Answer {
    let message = format!("{} {name:?} not found", request.place.full_resource());
    about(request, name, failure(StatusCode::NOT_FOUND, "NotFound", &message))
}

pub(super) fn already_exists(request: &Request, name: &str, old: &Value) -> Answer {
    let going = if old["metadata"]["deletionTimestamp"].is_null() { "" } else { "object is being deleted: " };
    let message = format!("{going}{} {name:?} already exists", request.place.full_resource());
    about(request, name, failure(StatusCode::CONFLICT, "AlreadyExists", &message))
}

pub(super) fn modified(request: &Request, name: &str) -> Answer {
    conflict(request, name, MODIFIED)
}

pub(super) fn conflict(request: &Request, name: &str, why: &str) -> Answer {
    let resource = request.place.full_resource();
    let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
    about(request, name, failure(StatusCode::CONFLICT, "Conflict", &message))
}

/// The conflict with a precondition of a delete, which names the Kind.
pub(super) fn precondition(request: &Request, kind: &str, name: &str, why: &str) -> Answer {
    let group = &request.place.group;
    let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", qualified(kind, group));
    with_details(failure(StatusCode::CONFLICT, "Conflict", &message), details(group, kind, name))
}

/// An invalid field and its error: `Required value`, `Invalid value`, `Forbidden`.
pub(super) struct Wrong<'a> {
    pub(super) field: &'a str,
    /// The reason, for example `FieldValueRequired`.
    pub(super) reason: &'a str,
    pub(super) message: String,
}

pub(super) fn invalid(group: &str, kind: &str, name: &str, wrong: &Wrong<'_>) -> Answer {
    let message =
        format!("{} {name:?} is invalid: {}: {}", qualified(kind, group), wrong.field, wrong.message);
    let mut details = details(group, kind, name);
    details["causes"] = json!([{ "reason": wrong.reason, "message": wrong.message, "field": wrong.field }]);
    with_details(failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &message), details)
}

pub(super) fn immutable(place: &Place, kind: &str, name: &str, field: &str, value: &Value) -> Answer {
    let message = format!("Invalid value: {value}: field is immutable");
    invalid(&place.group, kind, name, &Wrong { field, reason: "FieldValueInvalid", message })
}

pub(super) fn deleted(request: &Request, name: &str, uid: &Value) -> Answer {
    let mut details = details(&request.place.group, &request.place.plural, name);
    if uid.is_string() {
        details["uid"] = uid.clone();
    }
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    (StatusCode::OK, status)
}

pub(super) fn with_details((code, mut status): Answer, details: Value) -> Answer {
    status["details"] = details;
    (code, status)
}

fn about(request: &Request, name: &str, answer: Answer) -> Answer {
    with_details(answer, details(&request.place.group, &request.place.plural, name))
}

fn details(group: &str, kind: &str, name: &str) -> Value {
    let all = [("name", name), ("group", group), ("kind", kind)];
    let said = all.into_iter().filter(|(_, text)| !text.is_empty());
    Value::Object(said.map(|(field, text)| (field.to_owned(), json!(text))).collect::<Map<_, _>>())
}
