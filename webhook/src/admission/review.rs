//! Admission reviews: the request of the API server and the response.

use std::fmt;

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::core::{
    TypeMeta,
    admission::{AdmissionResponse, Operation as WireOperation},
    response::{Status, StatusSummary},
};
use reknit_apis::{Operation, Request};
use serde::Deserialize;
use serde_json::{Value, json};

/// A group, version and kind, in order of their names and displayed as in Go.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupVersionKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl GroupVersionKind {
    pub(crate) fn new(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    pub(crate) fn of<K: kube::Resource<DynamicType = ()>>() -> Self {
        Self { group: K::group(&()).into(), version: K::version(&()).into(), kind: K::kind(&()).into() }
    }

    /// A rule of a webhook configuration.
    pub(crate) fn rule(&self, operations: &[&str], resources: Vec<String>) -> Value {
        json!({
            "operations": operations, "apiGroups": [self.group], "apiVersions": [self.version],
            "resources": resources, "scope": "*",
        })
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

/// A decoded AdmissionReview.
#[derive(Deserialize)]
#[serde(try_from = "WireReview")]
pub(crate) struct Review {
    /// The response that allows the request.
    pub(crate) response: AdmissionResponse,
    pub(crate) kind: GroupVersionKind,
    /// The change to check. None if the request is always allowed: a CONNECT request, or the release of a deleted object.
    pub(crate) change: Option<Change>,
}

/// The creation, update or deletion of an object.
pub(crate) struct Change {
    pub(crate) request: Request,
    pub(crate) object: Option<Value>,
    pub(crate) old: Option<Value>,
}

impl Review {
    pub(crate) fn new(kind: GroupVersionKind, change: Option<Change>) -> Self {
        let mut response = AdmissionResponse::invalid("");
        response.allowed = true;
        response.result = Status::default();
        Self { response, kind, change: change.filter(|change| !change.is_release()) }
    }
}

impl Change {
    pub(crate) fn new_object(&self) -> Result<&Value, String> {
        self.object.as_ref().ok_or_else(|| "the new object may not be nil".into())
    }

    /// Returns true if only the metadata of an object that is being deleted changes, as when a finalizer is removed. That must be
    /// possible even if the object is invalid.
    fn is_release(&self) -> bool {
        let (Some(object), Some(old)) = (&self.object, &self.old) else { return false };
        let is_deleted = !old["metadata"]["deletionTimestamp"].is_null();
        self.request.operation == Operation::Update && is_deleted && differ_only_in_metadata(object, old)
    }
}

fn differ_only_in_metadata(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return false };
    let same = |(key, value): (&String, &Value)| key == "metadata" || other.get(key) == Some(value);
    one.iter().all(same) && other.keys().all(|key| key == "metadata" || one.contains_key(key))
}

/// Denies a request as Knative's webhooks do.
pub(crate) fn deny(response: AdmissionResponse, reason: impl fmt::Display) -> AdmissionResponse {
    let mut response = response.deny(reason);
    response.result.status = Some(StatusSummary::Failure);
    response.result.reason = "BadRequest".into();
    response.result.code = 400;
    response
}

/// An AdmissionReview as JSON. kube's own reviews hold typed objects, which lose fields that their type does not have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireReview {
    api_version: String,
    kind: String,
    request: Option<WireRequest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireRequest {
    uid: String,
    kind: GroupVersionKind,
    operation: WireOperation,
    user_info: UserInfo,
    #[serde(default)]
    name: String,
    namespace: Option<String>,
    sub_resource: Option<String>,
    #[serde(default)]
    dry_run: bool,
    object: Option<Value>,
    old_object: Option<Value>,
}

impl TryFrom<WireReview> for Review {
    type Error = &'static str;

    fn try_from(review: WireReview) -> Result<Self, Self::Error> {
        let wire = review.request.ok_or("the review has no request")?;
        let operation = match wire.operation {
            WireOperation::Create => Some(Operation::Create),
            WireOperation::Update => Some(Operation::Update),
            WireOperation::Delete => Some(Operation::Delete),
            WireOperation::Connect => None,
        };
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let change = operation.map(|operation| Change {
            request: Request {
                operation,
                user: wire.user_info,
                namespace: some(wire.namespace),
                name: wire.name,
                subresource: some(wire.sub_resource),
                dry_run: wire.dry_run,
            },
            object: wire.object,
            old: wire.old_object,
        });
        let mut parsed = Self::new(wire.kind, change);
        parsed.response.types = TypeMeta { api_version: review.api_version, kind: review.kind };
        parsed.response.uid = wire.uid;
        Ok(parsed)
    }
}
