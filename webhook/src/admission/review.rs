//! Admission reviews: the request of the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::core::{
    TypeMeta,
    admission::{AdmissionResponse, Operation as WireOperation},
    response::Status,
};
use reknit_apis::{Operation, Request};
use reknit_injection::internal::{RawFields, cut_object};
use serde::Deserialize;
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

use super::{change::Change, group_version_kind::GroupVersionKind};

/// A decoded AdmissionReview.
#[derive(Deserialize)]
#[serde(try_from = "WireReview")]
pub(crate) struct Review {
    /// The response that allows the request.
    pub(crate) response: AdmissionResponse,
    pub(crate) kind: GroupVersionKind,
    /// The version that the client used, if the API server has converted its object.
    pub(crate) converted_from: Option<String>,
    /// The change to check. `None` if the request is always allowed: a CONNECT request, or a change of only the
    /// metadata of a terminating object.
    pub(crate) change: Option<Change>,
}

impl Review {
    pub(crate) fn new(kind: GroupVersionKind, change: Option<Change>) -> Self {
        let mut response = AdmissionResponse::invalid("");
        response.allowed = true;
        response.result = Status::default();
        Self {
            response,
            kind,
            converted_from: None,
            change: change.filter(|change| !change.is_metadata_update_of_terminating_object()),
        }
    }
}

impl Review {
    /// Reads a review with an object that is nested too deep to be decoded. `None` unless the request deletes the object
    /// or changes only its metadata: such a request is allowed, since a stored object can always lose its finalizers.
    pub(crate) fn of_deep_object(body: &[u8]) -> Option<Self> {
        let DeepReview { api_version, kind, request } = serde_json::from_slice(body).ok()?;
        let keeps_content = match (request.operation, &request.object, &request.old_object) {
            (WireOperation::Delete, ..) => true,
            (WireOperation::Update, Some(object), Some(old)) => content(object).eq(content(old)),
            _ => false,
        };
        let mut review = Self::new(request.kind, None);
        review.response.types = TypeMeta { api_version, kind };
        review.response.uid = request.uid;
        keeps_content.then_some(review)
    }

    /// Reads a review with null for what lies too deep in the metadata and the status of its objects. `None` if it cannot be
    /// decoded then either.
    pub(crate) fn of_cut_objects(body: &[u8]) -> Option<Self> {
        let body = cut_objects(str::from_utf8(body).ok()?).ok()?;
        serde_json::from_str(&body).ok()
    }
}

/// Returns a review with null for what lies too deep in the metadata and the status of its objects.
fn cut_objects(body: &str) -> serde_json::Result<String> {
    let mut review: RawFields<'_> = serde_json::from_str(body)?;
    let Some(request) = review.get("request") else { return Ok(body.to_owned()) };
    let mut request: RawFields<'_> = serde_json::from_str(request.get())?;
    let is_object = |(_, value): &(_, &&RawValue)| value.get().starts_with('{');
    let objects = ["object", "oldObject"].into_iter().filter_map(|name| Some((name, request.get(name)?)));
    let cut = objects.filter(is_object).map(|(name, object)| Ok((name, cut_object(object.get())?)));
    let cut = cut.collect::<serde_json::Result<Vec<_>>>()?;
    for (name, object) in &cut {
        request.insert((*name).into(), serde_json::from_str(object)?);
    }
    let request = to_raw_value(&request)?;
    review.insert("request".into(), &request);
    serde_json::to_string(&review)
}

/// The fields of an object but its metadata, as they are written.
fn content<'a>(object: &'a BTreeMap<String, &RawValue>) -> impl Iterator<Item = (&'a String, &'a str)> {
    object.iter().filter(|(name, _)| *name != "metadata").map(|(name, value)| (name, value.get()))
}

/// An AdmissionReview whose objects are not decoded below their fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeepReview<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: DeepRequest<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeepRequest<'a> {
    uid: String,
    kind: GroupVersionKind,
    operation: WireOperation,
    #[serde(borrow)]
    object: Option<BTreeMap<String, &'a RawValue>>,
    #[serde(borrow)]
    old_object: Option<BTreeMap<String, &'a RawValue>>,
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
    request_kind: Option<GroupVersionKind>,
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

    fn try_from(wire: WireReview) -> Result<Self, Self::Error> {
        let request = wire.request.ok_or("the review has no request")?;
        let operation = match request.operation {
            WireOperation::Create => Some(Operation::Create),
            WireOperation::Update => Some(Operation::Update),
            WireOperation::Delete => Some(Operation::Delete),
            WireOperation::Connect => None,
        };
        let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let change = operation.map(|operation| {
            let mut attributes = Request::new(operation);
            attributes.user = request.user_info;
            attributes.namespace = non_empty(request.namespace);
            attributes.name = request.name;
            attributes.subresource = non_empty(request.sub_resource);
            attributes.dry_run = request.dry_run;
            Change { request: attributes, object: request.object, old: request.old_object }
        });
        let mut review = Self::new(request.kind, change);
        let requested = request.request_kind.map(|requested| requested.version);
        review.converted_from = requested.filter(|version| *version != review.kind.version);
        review.response.types = TypeMeta { api_version: wire.api_version, kind: wire.kind };
        review.response.uid = request.uid;
        Ok(review)
    }
}
