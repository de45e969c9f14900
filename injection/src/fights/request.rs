//! The fields that a request writes.

use futures::FutureExt;
use http::{Method, Request, header::CONTENT_TYPE};
use kube::client::Body;
use serde_json::Value;

use super::field::{Field, Step};

/// The request of a write.
///
/// The cached state to which its response is compared may be older than the one that the API server changed. So
/// a difference may be the change of another client, unless the request writes the field.
pub(crate) struct WriteRequest {
    body: Option<Body>,
    method: Method,
    is_apply: bool,
}

impl WriteRequest {
    pub(crate) fn of(request: &Request<Body>) -> Self {
        let content_type = request.headers().get(CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
        Self {
            body: request.body().try_clone(),
            method: request.method().clone(),
            is_apply: content_type.starts_with(b"application/apply-patch"),
        }
    }

    /// Removes the fields that the request does not write. An apply also removes fields that it does not name. Keeps all
    /// fields of a request whose body is not an object, such as a JSON patch.
    pub(super) fn retain_written(&self, fields: &mut Vec<Field>) {
        let body =
            self.body.as_ref().and_then(Body::try_clone).and_then(|body| body.collect_bytes().now_or_never());
        let body = body.and_then(Result::ok).and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let Some(body) = body.filter(|_| self.method == Method::PATCH) else { return };
        fields.retain(|field| names(&body, &field.path) || (self.is_apply && field.ours.is_none()));
    }
}

/// Returns true if the body contains the field, or a value or a list above it, whose items may have another order.
fn names(body: &Value, path: &[Step]) -> bool {
    match (path.split_first(), body) {
        (Some((Step::Name(name), rest)), Value::Object(fields)) => {
            fields.get(name).is_some_and(|below| names(below, rest))
        }
        _ => true,
    }
}
