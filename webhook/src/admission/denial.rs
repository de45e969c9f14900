//! The reason why a request is denied, and the status that its client gets.

use std::{fmt, iter};

use kube::core::{
    admission::AdmissionResponse,
    response::{StatusDetails, StatusSummary},
};
use reknit_apis::FieldError;

use super::group_version_kind::GroupVersionKind;

/// The reason why a request is denied, and the faults by field if they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    message: String,
    faults: FieldError,
    /// The code and the reason of the status, unless there are faults.
    status: (u16, &'static str),
}

const BAD_REQUEST: (u16, &str) = (400, "BadRequest");

impl Denial {
    /// Creates a denial with a message of its own. The causes of the status come from the faults.
    pub(crate) fn new(message: impl Into<String>, faults: FieldError) -> Self {
        Self { message: message.into(), faults, status: BAD_REQUEST }
    }

    /// Creates a denial of a request that may succeed later.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { status: (503, "ServiceUnavailable"), ..Self::from(message.into()) }
    }

    /// Creates a denial by rules that could not be evaluated.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { status: (500, "InternalError"), ..Self::from(message.into()) }
    }

    /// Creates a denial by rules that took too long.
    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self { status: (504, "Timeout"), ..Self::from(message.into()) }
    }

    /// Prepends the step that failed to the message.
    pub(crate) fn context(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Denies a request for an object of this Kind and name. With faults by field, the status is 422 `Invalid`, as for
    /// an object that the API server itself finds invalid. Without them it is 400 `BadRequest`, as in Knative, because
    /// kubectl prints only the faults of a 422, not its message.
    pub(crate) fn deny(
        self,
        response: AdmissionResponse,
        kind: &GroupVersionKind,
        name: &str,
    ) -> AdmissionResponse {
        let mut response = deny(response, &self.message);
        let status = &mut response.result;
        (status.code, status.reason) = (self.status.0, self.status.1.into());
        if !self.faults.is_empty() {
            (status.code, status.reason) = (422, "Invalid".into());
            status.details = Some(StatusDetails {
                name: name.into(),
                group: kind.group.clone(),
                kind: kind.kind.clone(),
                causes: self.faults.causes(),
                uid: String::new(),
                retry_after_seconds: 0,
            });
        }
        response
    }
}

/// Denies a request with 400 `BadRequest`, as Knative's webhooks do.
pub(crate) fn deny(response: AdmissionResponse, reason: impl fmt::Display) -> AdmissionResponse {
    let mut response = response.deny(reason);
    response.result.status = Some(StatusSummary::Failure);
    (response.result.code, response.result.reason) = (BAD_REQUEST.0, BAD_REQUEST.1.into());
    response
}

/// Adds to the faults and warnings that their fields are those of this version. The client has used another one,
/// `sent`, from which the API server has converted the object.
pub(crate) fn name_version(mut response: AdmissionResponse, version: &str, sent: &str) -> AdmissionResponse {
    let note = format!(" (in {version}, to which the API server converts {sent})");
    let result = &mut response.result;
    let causes = result.details.iter_mut().flat_map(|details| &mut details.causes);
    let faults = iter::once(&mut result.message).filter(|_| !response.allowed);
    let texts = faults.chain(causes.map(|cause| &mut cause.message));
    texts.chain(response.warnings.iter_mut().flatten()).for_each(|text| text.push_str(&note));
    response
}

impl From<String> for Denial {
    fn from(message: String) -> Self {
        Self::new(message, FieldError::none())
    }
}

impl From<&str> for Denial {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl From<FieldError> for Denial {
    fn from(faults: FieldError) -> Self {
        Self::new(faults.to_string(), faults)
    }
}

impl From<Denial> for String {
    fn from(denial: Denial) -> Self {
        denial.message
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
