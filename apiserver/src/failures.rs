//! Requests that a test makes fail.

use http::StatusCode;
use kube::{core::response::reason, discovery::verbs};

use crate::{
    collection::is_among,
    request::Request,
    response::{Response, failure},
};

/// The verbs of the requests that can be made to fail.
const VERBS: &str = "get list watch create update patch delete deletecollection";

/// The failures that a test has set, in order.
#[derive(Default)]
pub(crate) struct Failures(Vec<Failure>);

struct Failure {
    verb: String,
    resource: String,
    code: u16,
    /// The number of requests that are still to fail. `None` if there is no limit.
    remaining: Option<usize>,
}

impl Failures {
    pub(crate) fn add(&mut self, verb: String, resource: &str, code: u16, remaining: Option<usize>) {
        assert!(is_among(&verb, VERBS), "unknown verb {verb:?}");
        self.0.push(Failure { verb, resource: resource.into(), code, remaining });
    }

    /// Returns the response of the first failure that a test set for such requests, and counts it down.
    pub(crate) fn take(&mut self, request: &Request) -> Option<Response> {
        let resource = request.resource();
        let failure = self.0.iter_mut().find(|failure| {
            failure.verb == request.verb && failure.resource == resource && failure.remaining != Some(0)
        })?;
        failure.remaining = failure.remaining.map(|remaining| remaining - 1);
        Some(response(request, StatusCode::from_u16(failure.code).ok()?))
    }
}

fn response(request: &Request, code: StatusCode) -> Response {
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
        409 if request.verb == verbs::CREATE && request.subresource.is_none() => reason::ALREADY_EXISTS,
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
