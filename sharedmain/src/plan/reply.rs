//! Requests and responses of a plan, as JSON.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header, request::Parts};
use http_body_util::{BodyExt, Full};
use kube::client::{Body, DynBody};
use reknit_injection::internal::{HttpResponse, decode_value};
use reknit_reconciler::internal::is_of_removed_version;
use serde_json::{Map, Value, json};
use tower::BoxError;

use super::overlay::{Id, Part};

/// A write to an object or a collection.
pub(super) struct Write {
    pub(super) head: Parts,
    pub(super) body: Value,
}

impl Write {
    pub(super) async fn read(head: Parts, body: Body) -> Result<Self, BoxError> {
        let bytes = body.collect_bytes().await?;
        let body = if bytes.is_empty() { Value::Null } else { decode_value(std::str::from_utf8(&bytes)?)? };
        Ok(Self { head, body })
    }

    pub(super) fn is_apply(&self) -> bool {
        self.patch_type() == "application/apply-patch+yaml"
    }

    pub(super) fn patch_type(&self) -> &str {
        let header =
            self.head.headers.get(header::CONTENT_TYPE).filter(|_| self.head.method == Method::PATCH);
        let value = header.and_then(|value| value.to_str().ok()).unwrap_or_default();
        value.split(';').next().unwrap_or_default()
    }

    pub(super) fn param(&self, name: &str) -> Option<String> {
        param(&self.head.uri, name)
    }

    /// The manager of a server-side apply.
    pub(super) fn manager(&self) -> Option<String> {
        self.is_apply().then(|| self.param("fieldManager").unwrap_or_default())
    }

    /// The error of the request if its preconditions do not admit the object.
    pub(super) fn precondition_error(&self, id: &Id, current: &Value) -> Option<Reply> {
        let preconditions = match self.head.method {
            Method::DELETE => &self.body["preconditions"],
            _ => &self.body["metadata"],
        };
        let differs = |field: &str| {
            let required = preconditions[field].as_str().unwrap_or_default();
            !required.is_empty() && current["metadata"][field] != required
        };
        (differs("uid") || differs("resourceVersion")).then(|| Reply::modified(id))
    }

    /// Returns true if a deletion removes the owner references from the dependents instead of deleting them.
    pub(super) fn orphans_dependents(&self, id: &Id) -> bool {
        let in_body = self.body["propagationPolicy"].as_str().map(Into::into);
        let policy = in_body.or_else(|| self.param("propagationPolicy"));
        policy.map_or_else(|| id.orphans_dependents_by_default(), |policy| policy == "Orphan")
    }

    /// Returns the same request with another body.
    pub(super) fn with_body(&self, body: Value) -> Self {
        Self { head: self.head.clone(), body }
    }

    /// Returns another request of the same caller. A patch is a merge patch.
    pub(super) fn to(&self, method: Method, path: &str, body: Value) -> Result<Self, BoxError> {
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = if method == Method::DELETE && !body.is_object() { self.deletion_options() } else { body };
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.param("fieldManager").map(|manager| ("fieldManager", manager)));
        let mut head = self.head.clone();
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        (head.method, head.uri) = (method, format!("{path}?{}", query.finish()).parse()?);
        Ok(Self { head, body })
    }

    /// Returns the request as a dry run. Every write that a plan sends is built here.
    pub(super) fn dry_run(&self) -> Result<Request<Body>, BoxError> {
        let Self { mut head, mut body } = self.with_body(self.body.clone());
        let is_deletion = head.method == Method::DELETE;
        let mut query = form_urlencoded::Serializer::new(String::new());
        let given = form_urlencoded::parse(self.head.uri.query().unwrap_or_default().as_bytes());
        if is_deletion {
            // Of the query of a deletion with a body, the API server reads only what selects objects.
            query.extend_pairs(given.filter(|(name, _)| name == "labelSelector" || name == "fieldSelector"));
            body["dryRun"] = json!(["All"]);
        } else {
            query.extend_pairs(given.filter(|(name, _)| name != "dryRun" && name != "fieldValidation"));
            query.extend_pairs([("dryRun", "All"), ("fieldValidation", "Warn")]);
        }
        head.uri = format!("{}?{}", head.uri.path(), query.finish()).trim_end_matches('?').parse()?;
        head.headers.remove(header::CONTENT_LENGTH);
        head.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        Ok(Request::from_parts(head, Body::from(serde_json::to_vec(&body)?)))
    }

    /// The options of a deletion: the body, or else the options in the query.
    pub(super) fn deletion_body(&self) -> Value {
        if self.body.is_object() { self.body.clone() } else { self.deletion_options() }
    }

    /// The options in the query of a deletion without a body.
    fn deletion_options(&self) -> Value {
        let policy =
            self.param("propagationPolicy").map(|policy| ("propagationPolicy".into(), json!(policy)));
        let seconds = self.param("gracePeriodSeconds").and_then(|seconds| seconds.parse::<u32>().ok());
        let seconds = seconds.map(|seconds| ("gracePeriodSeconds".into(), json!(seconds)));
        Value::Object(policy.into_iter().chain(seconds).collect::<Map<_, _>>())
    }
}

/// The reason for which the API server did not validate a part of an object.
pub(super) type Reason = Cow<'static, str>;

/// The object in the response to a dry run, or the reason for which there is none.
pub(super) type Answer = Result<Value, Reason>;

pub(super) const BY_SERVER: &str = "the object, since its API server does not say that it honours dry runs";

pub(super) const BY_WEBHOOK: &str =
    "the object, since an admission webhook answers no dry runs or cannot be called";

pub(super) const BY_REMOVED_VERSION: &str = "the removal of fields that are no longer applied, since the managed fields \
                                             name a version that was removed";

/// A response whose body is JSON. As an error, it is the refusal of a request.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.message())]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) fn new(status: StatusCode, body: &Value) -> Self {
        let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        Self { status, headers: headers.into_iter().collect(), body: body.to_string().into() }
    }

    pub(super) fn ok(object: &Value) -> Self {
        Self::new(StatusCode::OK, object)
    }

    pub(super) fn failure(status: StatusCode, reason: &str, message: &str) -> Self {
        let code = status.as_u16();
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason,
            "code": code,
        });
        Self::new(status, &body)
    }

    pub(super) fn not_found(id: &Id) -> Self {
        Self::failure(StatusCode::NOT_FOUND, "NotFound", &format!("{id} not found"))
    }

    pub(super) fn modified(id: &Id) -> Self {
        let message = format!("Operation cannot be fulfilled on {id}: the object has been modified");
        Self::failure(StatusCode::CONFLICT, "Conflict", &message)
    }

    /// Returns true if an admission webhook answers no dry runs, or cannot be called.
    pub(super) fn is_webhook_failure(&self) -> bool {
        let texts = ["does not support dry run", "failed calling webhook"];
        !self.is_success() && texts.iter().any(|text| self.message().contains(text))
    }

    /// Returns true if the API server cannot apply, since the managed fields of the object name a version that was removed.
    /// Controllers replace such a version, which a dry run cannot show.
    pub(super) fn is_of_removed_version(&self) -> bool {
        is_of_removed_version(&self.message())
    }

    pub(super) async fn read(response: HttpResponse) -> Result<Self, BoxError> {
        let (head, body) = response.into_parts();
        Ok(Self { status: head.status, headers: head.headers, body: body.collect().await?.to_bytes() })
    }

    pub(super) fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// Returns the response, as an error unless it is a success.
    pub(super) fn successful(self) -> Result<Self, BoxError> {
        if self.is_success() { Ok(self) } else { Err(self.into()) }
    }

    pub(super) fn json(&self) -> Result<Value, BoxError> {
        Ok(decode_value(str::from_utf8(&self.body)?)?)
    }

    pub(super) fn message(&self) -> String {
        let message = self.json().ok().and_then(|status| Some(status["message"].as_str()?.to_owned()));
        message.unwrap_or_else(|| self.status.to_string())
    }

    pub(super) fn into_response(self) -> HttpResponse {
        let body: Box<DynBody> = Box::new(Full::from(self.body).map_err(|never| match never {}));
        let mut response = Response::new(body);
        (*response.status_mut(), *response.headers_mut()) = (self.status, self.headers);
        response.headers_mut().remove(header::CONTENT_LENGTH);
        response
    }
}

/// A parameter of a query.
pub(super) fn param(uri: &Uri, name: &str) -> Option<String> {
    let query = uri.query().unwrap_or_default().as_bytes();
    form_urlencoded::parse(query).find(|(other, _)| other == name).map(|(_, value)| value.into_owned())
}

/// Applies a patch or an update to an object. The error is the response to the request.
pub(super) fn changed(write: &Write, part: Part, current: &Value) -> Result<Value, BoxError> {
    let mut changed = current.clone();
    match write.patch_type() {
        // Of an apply that no webhook admits to a dry run, lists are not merged.
        "application/merge-patch+json" | "application/apply-patch+yaml" => {
            json_patch::merge(&mut changed, &write.body);
        }
        "application/json-patch+json" => serde_json::from_value(write.body.clone())
            .map_err(|error| error.to_string())
            .and_then(|patch: json_patch::Patch| {
                json_patch::patch(&mut changed, &patch).map_err(|error| error.to_string())
            })
            .map_err(|error| Reply::failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &error))?,
        "" => changed = part.written(&write.body),
        patch_type => {
            let message =
                format!("a plan cannot apply a second {patch_type} to an object: use a merge patch");
            return Err(
                Reply::failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", &message).into()
            );
        }
    }
    Ok(changed)
}
