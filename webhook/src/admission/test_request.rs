//! Admission requests for tests, which call the webhook without a server.

use std::{error::Error, sync::Arc};

use kube::core::{Status, admission::AdmissionResponse, response::StatusCause};
use reknit_apis::{Operation, Request};
use serde::Serialize;
use serde_json::Value;

use super::{
    change::Change, group_version_kind::GroupVersionKind, mutator::selects, outcome::ReviewOutcome,
    review::Review,
};
use crate::webhook::Webhook;

/// A request to create, update or delete an object, for tests of a webhook. [`Webhook::admit`](crate::Webhook::admit)
/// answers it.
///
/// The object is anything that serializes to JSON with an `apiVersion` and a `kind`: a Kind, or `json!(..)` with a
/// mistake that the type would not allow.
#[derive(Clone, Debug)]
#[must_use = "does nothing before `webhook.admit(…)`"]
pub struct TestRequest {
    attributes: Request,
    object: Value,
    old: Value,
}

/// The reason why a request is denied, as the client reads it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Denied {
    message: String,
    causes: Vec<StatusCause>,
}

impl Denied {
    /// Returns the faults by field. Empty if the request is denied for another reason, such as a failed validator.
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

impl TestRequest {
    /// A request to create an object.
    pub fn create(object: impl Serialize) -> Self {
        Self::new(Operation::Create, to_json(object), Value::Null)
    }

    /// A request to update an object.
    pub fn update(old: impl Serialize, object: impl Serialize) -> Self {
        Self::new(Operation::Update, to_json(object), to_json(old))
    }

    /// A request to delete an object.
    pub fn delete(old: impl Serialize) -> Self {
        Self::new(Operation::Delete, Value::Null, to_json(old))
    }

    fn new(operation: Operation, object: Value, old: Value) -> Self {
        let mut attributes = Request::new(operation);
        let metadata = &(if object.is_null() { &old } else { &object })["metadata"];
        attributes.name = metadata["name"].as_str().unwrap_or_default().into();
        attributes.namespace = metadata["namespace"].as_str().map(str::to_owned);
        Self { attributes, object, old }
    }

    /// Sets the user who sends the request.
    pub fn by(mut self, username: &str) -> Self {
        self.attributes = self.attributes.by(username);
        self
    }

    /// Sets the value that [`Request::config`] returns for this type.
    pub fn with<T: Send + Sync + 'static>(mut self, value: impl Into<Arc<T>>) -> Self {
        self.attributes = self.attributes.with(value);
        self
    }

    /// Makes this a request for a subresource. An empty name means the object itself.
    pub fn subresource(mut self, name: &str) -> Self {
        self.attributes.subresource = Some(name.into()).filter(|name: &String| !name.is_empty());
        self
    }

    /// Makes this a dry run.
    pub fn dry_run(mut self) -> Self {
        self.attributes.dry_run = true;
        self
    }

    /// Creates the review that the API server would send for this object, which may already have its defaults.
    fn review(&self, object: &Value) -> Result<Review, Denied> {
        let subject = if object.is_null() { &self.old } else { object };
        let (Some(version), Some(kind)) = (subject["apiVersion"].as_str(), subject["kind"].as_str()) else {
            return Err(Denied::new("could not decode body: the object has no apiVersion or kind"));
        };
        let non_null = |value: &Value| Some(value.clone()).filter(|value| !value.is_null());
        let change =
            Change { request: self.attributes.clone(), object: non_null(object), old: non_null(&self.old) };
        Ok(Review::new(GroupVersionKind::new(version, kind), Some(change)))
    }
}

/// Serializes the object. If that fails, the result is null, and the request is refused because it has no kind.
fn to_json(object: impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

impl Webhook {
    /// Admits a request as the API server does with this webhook: defaulting first, then the mutators, then
    /// validation. For tests.
    ///
    /// A request for a subresource sets no defaults, and is validated only if the Kind lists the subresource
    /// ([`Validatable::SUBRESOURCES`](reknit_apis::Validatable::SUBRESOURCES)).
    ///
    /// # Errors
    ///
    /// Fails with the reason if the request is denied.
    pub async fn admit(&self, request: TestRequest) -> Result<Admitted, Denied> {
        let mut object = request.object.clone();
        let review = request.review(&object)?;
        let (kind, subresource) = (review.kind.clone(), request.attributes.subresource.as_deref());
        if subresource.is_none() && self.defaulting.contains(&kind) {
            object = patched(object, self.set_defaults(review))?;
        }
        let mut warnings = Vec::new();
        for mutator in self.mutators.values().filter(|mutator| selects(&***mutator, &kind)) {
            let mutated = self.mutate(&**mutator, request.review(&object)?);
            warnings.extend(mutated.response.warnings.iter().flatten().cloned());
            object = patched(object, mutated)?;
        }
        require_allowed(self.validate_config_map(request.review(&object)?))?;
        if self.validation.covers(&kind, &request.attributes) {
            let outcome = self.validate(request.review(&object)?);
            let limit = self.limits.validator_timeout;
            let response = outcome.finish(&kind, &request.attributes.name, limit).await;
            warnings.extend(require_allowed(response.into())?.warnings.into_iter().flatten());
        }
        let object = if object.is_null() { request.old } else { object };
        Ok(Admitted { object, warnings })
    }
}

/// Returns the object with the patch of an allowed request.
fn patched(object: Value, outcome: ReviewOutcome) -> Result<Value, Denied> {
    match require_allowed(outcome)?.patch {
        Some(patch) => apply_patch(object, &patch).map_err(|error| Denied::new(error.to_string())),
        None => Ok(object),
    }
}

fn require_allowed(ReviewOutcome { response, .. }: ReviewOutcome) -> Result<AdmissionResponse, Denied> {
    if response.allowed {
        return Ok(response);
    }
    let Status { message, details, .. } = response.result;
    Err(Denied { message, causes: details.map(|details| details.causes).unwrap_or_default() })
}

fn apply_patch(mut object: Value, patch: &[u8]) -> Result<Value, Box<dyn Error>> {
    json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(patch)?)?;
    Ok(object)
}
