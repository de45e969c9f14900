//! A request to be admitted without any server.

use kube::core::admission::{AdmissionRequest, AdmissionReview};
use reknit_apis::Operation;
use serde::Serialize;
use serde_json::{Value, json};

use crate::admission::raw::Raw;

/// What somebody would like to do with an object, for [`Webhook::admit`](crate::Webhook::admit).
///
/// The object is anything that becomes JSON with an `apiVersion` and a `kind`: a Kind, or `json!(..)` with a mistake in
/// it that no type would allow.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked until it is admitted"]
pub struct Proposal {
    request: Value,
}

/// Why a request was refused, in the words that who asked reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub(crate) String);

/// A request that was let through.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// The object as it is stored, with its defaults; as it was where it is deleted.
    pub object: Value,
    /// What who asked is told all the same.
    pub warnings: Vec<String>,
}

impl Proposal {
    /// To create this object.
    pub fn create(object: impl Serialize) -> Self {
        Self::new(Operation::Create, Some(json(object)), None)
    }

    /// To make that of this object.
    pub fn update(old: impl Serialize, object: impl Serialize) -> Self {
        Self::new(Operation::Update, Some(json(object)), Some(json(old)))
    }

    /// To delete this object.
    pub fn delete(old: impl Serialize) -> Self {
        Self::new(Operation::Delete, None, Some(json(old)))
    }

    fn new(operation: Operation, object: Option<Value>, old: Option<Value>) -> Self {
        let of = object.as_ref().or(old.as_ref()).cloned().unwrap_or_default();
        let version = of["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let operation = match operation {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
        };
        let request = json!({
            "uid": "",
            "kind": {"group": group, "version": version, "kind": of["kind"]},
            "resource": {"group": group, "version": version, "resource": ""},
            "name": of["metadata"]["name"].as_str().unwrap_or_default(),
            "namespace": of["metadata"]["namespace"],
            "operation": operation,
            "userInfo": {},
            "object": object,
            "oldObject": old,
            "dryRun": false,
        });
        Self { request }
    }

    /// Asked by this user.
    pub fn by(mut self, username: &str) -> Self {
        self.request["userInfo"]["username"] = username.into();
        self
    }

    /// About this part of the object.
    pub fn subresource(mut self, name: &str) -> Self {
        self.request["subResource"] = name.into();
        self
    }

    /// Only to see what would happen.
    pub fn dry_run(mut self) -> Self {
        self.request["dryRun"] = true.into();
        self
    }

    /// What the API server would ask, once the object has become this.
    pub(crate) fn asked(&self, object: &Value) -> Result<AdmissionRequest<Raw>, Refused> {
        let mut request = self.request.clone();
        request["object"].clone_from(object);
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let review = serde_json::from_value::<AdmissionReview<Raw>>(review);
        let asked = review.map_err(|error| error.to_string()).and_then(|review| {
            review
                .try_into()
                .map_err(|error: kube::core::admission::ConvertAdmissionReviewError| error.to_string())
        });
        asked.map_err(|error| Refused(format!("could not decode body: {error}")))
    }

    /// The part of the object that it is about; none where it is the whole.
    pub(crate) fn part(&self) -> Option<&str> {
        self.request["subResource"].as_str().filter(|part| !part.is_empty())
    }

    pub(crate) fn object(&self) -> &Value {
        &self.request["object"]
    }

    pub(crate) fn old(&self) -> &Value {
        &self.request["oldObject"]
    }
}

/// What cannot become JSON has no fields, and is refused as such.
fn json(object: impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}
