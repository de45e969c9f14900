//! What an API server says when it does not do as it was asked.

use http::StatusCode;
use serde_json::{Value, json};

use super::request::Request;

pub(super) type Answer = (StatusCode, Value);

pub(super) fn failure(code: StatusCode, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    });
    (code, status)
}

pub(super) fn not_found(request: &Request, name: &str) -> Answer {
    let message = format!("{} {name:?} not found", request.place.full_resource());
    failure(StatusCode::NOT_FOUND, "NotFound", &message)
}

pub(super) fn already_exists(request: &Request, name: &str) -> Answer {
    let message = format!("{} {name:?} already exists", request.place.full_resource());
    failure(StatusCode::CONFLICT, "AlreadyExists", &message)
}

pub(super) fn conflict(request: &Request, name: &str, why: &str) -> Answer {
    let resource = request.place.full_resource();
    let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
    failure(StatusCode::CONFLICT, "Conflict", &message)
}

pub(super) fn invalid(request: &Request, why: &str) -> Answer {
    let message = format!("{} is invalid: {why}", request.place.full_resource());
    failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &message)
}
