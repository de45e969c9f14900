//! The response to an admission review, and the rules that may still deny the request.

use std::time::Duration;

use futures::future::BoxFuture;
use kube::core::admission::AdmissionResponse;
use reknit_apis::{FieldError, Level};
use tokio::time::timeout;

use super::{
    denial::{Denial, deny},
    group_version_kind::GroupVersionKind,
};

/// The faults that a rule has found, or the reason why it could not be evaluated.
pub(crate) type Verdict = Result<FieldError, Denial>;

/// The evaluation of one validator for one request.
pub(crate) type PendingRule = BoxFuture<'static, Verdict>;

/// The response to a review, and the rules that may still deny the request.
pub(crate) struct ReviewOutcome {
    pub(crate) response: AdmissionResponse,
    pub(crate) rules: Vec<PendingRule>,
    /// True if this release does not handle the Kind.
    pub(crate) is_unhandled: bool,
}

impl From<AdmissionResponse> for ReviewOutcome {
    fn from(response: AdmissionResponse) -> Self {
        Self { response, rules: Vec::new(), is_unhandled: false }
    }
}

/// Allows the request with this patch, or denies it if the patch cannot be encoded.
pub(crate) fn allow_with_patch(response: AdmissionResponse, patch: json_patch::Patch) -> ReviewOutcome {
    if patch.is_empty() {
        return response.into();
    }
    let with_patch = response.clone().with_patch(patch);
    with_patch.unwrap_or_else(|error| deny(response, format!("unable to create patch: {error}"))).into()
}

impl ReviewOutcome {
    /// Denies a review of a Kind that this release does not handle. The message begins with `failed`, as Knative's. The
    /// API server sends such reviews if the controllers of another release have registered the Kind.
    pub(crate) fn unhandled(response: AdmissionResponse, failed: &str, kind: &GroupVersionKind) -> Self {
        let reason = format!(
            "{failed}unhandled kind: {kind}: this replica of the webhook is of another release than the controllers that \
             have registered the Kind: repeat the request once the webhook is rolled out, or roll the controllers back"
        );
        Self { is_unhandled: true, ..deny(response, reason).into() }
    }

    /// Evaluates the pending rules of an allowed request, one after another until one refuses it.
    pub(crate) async fn finish(
        self,
        kind: &GroupVersionKind,
        name: &str,
        limit: Duration,
    ) -> AdmissionResponse {
        let Self { mut response, rules, .. } = self;
        if !response.allowed {
            return response;
        }
        let evaluate = async {
            for rule in rules {
                response = judge(response.clone(), kind, name, rule.await?);
                if !response.allowed {
                    break;
                }
            }
            Ok::<_, Denial>(())
        };
        let result = timeout(limit, evaluate).await;
        match result {
            Ok(Ok(())) => response,
            Ok(Err(denial)) => denial.context("validation failed").deny(response, kind, name),
            Err(_) => {
                let reason = format!(
                    "validation failed: the rules that read other objects took longer than {limit:?}"
                );
                Denial::timed_out(reason).deny(response, kind, name)
            }
        }
    }
}

/// Adds the warnings of these faults to the response, and denies the request if there are errors.
pub(crate) fn judge(
    mut response: AdmissionResponse,
    kind: &GroupVersionKind,
    name: &str,
    faults: FieldError,
) -> AdmissionResponse {
    // One warning for each line, since the API server sends each in an HTTP header.
    let warnings = faults.clone().filter(Level::Warning).to_string();
    if !warnings.is_empty() {
        response.warnings.get_or_insert_default().extend(warnings.lines().map(str::to_owned));
    }
    let errors = faults.filter(Level::Error);
    match errors.is_empty() {
        true => response,
        false => Denial::from(errors).context("validation failed").deny(response, kind, name),
    }
}
