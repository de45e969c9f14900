//! Admission requests for tests, which call the webhook without a server.

use std::{error::Error, sync::Arc};

use kube::core::{Status, admission::AdmissionResponse, response::StatusCause};
use reknit_apis::{Operation, Request};
use serde::Serialize;
use serde_json::Value;

use super::review::{Change, GroupVersionKind, Review, ReviewOutcome};
use crate::webhook::Webhook;

/// A request to create, update or delete an object, for [`Webhook::admit`](crate::Webhook::admit).
///
/// The object is anything that serializes to JSON with an `apiVersion` and a `kind`: a Kind, or `json!(..)` with a
/// mistake that the type would not allow.
#[derive(Clone, Debug)]
#[must_use = "a proposal does nothing until it is admitted"]
pub struct Proposal {
    request: Request,
    object: Value,
    old: Value,
}

/// The reason why a request is denied, as the client reads it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    message: String,
    causes: Vec<StatusCause>,
}

impl Refused {
    /// Returns the faults by field. Empty if the request is denied for another reason, such as a failed callback.
    pub fn causes(&self) -> &[StatusCause] {
        &self.causes
    }

    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), causes: vec![] }
    }
}

/// An allowed request.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// The object as it is stored, with its defaults; the old object if it is deleted.
    pub object: Value,
    /// The warnings for the client.
    pub warnings: Vec<String>,
}

impl Proposal {
    /// Proposes to create an object.
    pub fn create(object: impl Serialize) -> Self {
        Self::new(Operation::Create, to_json(object), Value::Null)
    }

    /// Proposes to update an object.
    pub fn update(old: impl Serialize, object: impl Serialize) -> Self {
        Self::new(Operation::Update, to_json(object), to_json(old))
    }

    /// Proposes to delete an object.
    pub fn delete(old: impl Serialize) -> Self {
        Self::new(Operation::Delete, Value::Null, to_json(old))
    }

    fn new(operation: Operation, object: Value, old: Value) -> Self {
        let mut request = Request::new(operation);
        let metadata = &(if object.is_null() { &old } else { &object })["metadata"];
        request.name = metadata["name"].as_str().unwrap_or_default().into();
        request.namespace = metadata["namespace"].as_str().map(str::to_owned);
        Self { request, object, old }
    }

    /// Sets the user who sends the request.
    pub fn by(mut self, username: &str) -> Self {
        self.request = self.request.by(username);
        self
    }

    /// Sets the value that [`Request::config`] returns for this type.
    pub fn with<T: Send + Sync + 'static>(mut self, value: impl Into<Arc<T>>) -> Self {
        self.request = self.request.with(value);
        self
    }

    /// Makes the proposal a request for a subresource. An empty name means the object itself.
    pub fn subresource(mut self, name: &str) -> Self {
        self.request.subresource = Some(name.into()).filter(|name: &String| !name.is_empty());
        self
    }

    /// Makes the proposal a dry run.
    pub fn dry_run(mut self) -> Self {
        self.request.dry_run = true;
        self
    }

    /// Creates the review that the API server would send for this object, which may already have its defaults.
    fn review(&self, object: &Value) -> Result<Review, Refused> {
        let subject = if object.is_null() { &self.old } else { object };
        let (Some(version), Some(kind)) = (subject["apiVersion"].as_str(), subject["kind"].as_str()) else {
            return Err(Refused::new("could not decode body: the object has no apiVersion or kind"));
        };
        let non_null = |value: &Value| Some(value.clone()).filter(|value| !value.is_null());
        let change =
            Change { request: self.request.clone(), object: non_null(object), old: non_null(&self.old) };
        Ok(Review::new(GroupVersionKind::new(version, kind), Some(change)))
    }
}

/// Serializes the object. If that fails, the result is null, and the request is refused because it has no kind.
fn to_json(object: impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

impl Webhook {
    /// Admits a request as the API server does with this webhook: defaulting first, then bindings, then
    /// validation. For tests.
    ///
    /// A request for a subresource sets no defaults, and is validated only if the Kind lists the subresource
    /// ([`Validatable::SUBRESOURCES`](reknit_apis::Validatable::SUBRESOURCES)).
    ///
    /// # Errors
    ///
    /// Fails with the reason if the request is denied.
    pub async fn admit(&self, proposal: Proposal) -> Result<Admitted, Refused> {
        let mut object = proposal.object.clone();
        let review = proposal.review(&object)?;
        let (kind, subresource) = (review.kind.clone(), proposal.request.subresource.as_deref());
        if subresource.is_none() && self.defaulting.contains_key(&kind) {
            object = patched(object, self.set_defaults(review))?;
        }
        if self.binds(&kind) {
            let bound = self.bind_subject(proposal.review(&object)?);
            object = patched(object, bound)?;
        }
        require_allowed(self.validate_config_map(proposal.review(&object)?))?;
        let mut warnings = Vec::new();
        if self.validates(&kind, subresource) {
            let mut outcome = self.validate(proposal.review(&object)?);
            while let Some(callback) = outcome.callbacks.pop_front() {
                outcome = outcome.with_callback_result(callback().await);
            }
            warnings = require_allowed(outcome)?.warnings.unwrap_or_default();
        }
        let object = if object.is_null() { proposal.old } else { object };
        Ok(Admitted { object, warnings })
    }
}

/// Returns the object with the patch of an allowed request.
fn patched(object: Value, outcome: ReviewOutcome) -> Result<Value, Refused> {
    match require_allowed(outcome)?.patch {
        Some(patch) => apply_patch(object, &patch).map_err(|error| Refused::new(error.to_string())),
        None => Ok(object),
    }
}

fn require_allowed(ReviewOutcome { response, .. }: ReviewOutcome) -> Result<AdmissionResponse, Refused> {
    if response.allowed {
        return Ok(response);
    }
    let Status { message, details, .. } = response.result;
    Err(Refused { message, causes: details.map(|details| details.causes).unwrap_or_default() })
}

fn apply_patch(mut object: Value, patch: &[u8]) -> Result<Value, Box<dyn Error>> {
    json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(patch)?)?;
    Ok(object)
}
