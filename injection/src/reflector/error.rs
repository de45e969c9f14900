//! The reasons why a list or a watch fails.

use std::{fmt, time::Duration};

use kube::core::{Status, discovery::ApiResource};

use crate::{
    client::{is_without_status, retry_after_of_status},
    error_text::with_causes,
};

/// The reason why a list or a watch failed. How the reflector recovers depends on the variant and, for `Refused`, on
/// the code.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the resourceVersion has expired: {0}")]
    Expired(String),
    #[error("the API server does not know the resource: {0}")]
    NotFound(String),
    #[error("{0} (403)")]
    Forbidden(String),
    /// The resource exists, but serves no such request, as TokenReviews, which are only created.
    #[error("{0} (405)")]
    NotServed(String),
    /// Any other error response. One without a `Status` may be from a proxy, also with the code 403, 404 or 405.
    #[error("{message} ({code})")]
    Refused { code: u16, message: String, retry_after: Option<Duration> },
    /// An `ERROR` event other than 410. The watch may have left out changes.
    #[error("the watch failed: {0}")]
    Watch(String),
    #[error("no response within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the page of the list is too large")]
    TooLarge,
    #[error("malformed response: {0}")]
    Malformed(String),
    /// The number of watches in a row that were opened and sent no event.
    #[error(
        "{0} watches in a row sent no event, not even a bookmark: check whether a proxy in between buffers or ends them"
    )]
    NoEvents(u32),
    /// A failed or broken connection.
    #[error("{0}")]
    Broken(String),
}

impl Failure {
    pub(super) fn from_status(status: Status) -> Self {
        let retry_after = retry_after_of_status(&status);
        match status {
            Status { code: 410, message, .. } => Self::Expired(message),
            Status { code: 403..=405, ref message, .. } if is_without_status(&status) => Self::Refused {
                code: status.code,
                message: format!(
                    "{message}: not from an API server, check the address and the proxies in between"
                ),
                retry_after,
            },
            Status { code: 403, message, .. } => Self::Forbidden(message),
            Status { code: 404, message, .. } => Self::NotFound(message),
            Status { code: 405, message, .. } => Self::NotServed(message),
            Status { code, message, .. } => Self::Refused { code, message, retry_after },
        }
    }

    /// The wait that the server asked for.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Returns true if the server has too much to do, whether or not it says for how long.
    pub(super) fn is_overload(&self) -> bool {
        matches!(self, Self::Refused { code: 429 | 503, .. }) || self.retry_after().is_some()
    }

    /// Returns true if the request took too long.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Refused { code: 504, .. })
    }

    /// Creates the failure of an `ERROR` event of a watch.
    pub(crate) fn from_event(status: &Status) -> Self {
        match status.code {
            410 => Self::Expired(status.message.clone()),
            _ => Self::Watch(status.message.clone()),
        }
    }

    pub(crate) fn malformed(error: impl fmt::Display) -> Self {
        Self::Malformed(error.to_string())
    }

    /// A message for the operator: what failed and what to do.
    pub(crate) fn explain(&self, kind: &ApiResource, namespace: Option<&str>) -> String {
        let ApiResource { api_version, kind, plural, .. } = kind;
        match self {
            Self::NotFound(_) => {
                let namespace_hint = namespace.map_or_else(String::new, |namespace| {
                    format!("; a cluster-scoped resource cannot be selected by namespace {namespace}")
                });
                format!(
                    "the API server does not know {plural} of {api_version} ({kind}): \
                     install its CustomResourceDefinition if it is a custom resource{namespace_hint}"
                )
            }
            Self::Forbidden(message) => {
                format!("{message}: grant this process the verbs list and watch on {plural} of {api_version}")
            }
            Self::NotServed(message) => format!(
                "{plural} of {api_version} ({kind}) cannot be listed or watched, so that no informer can read them: \
                 {message} (405)"
            ),
            _ => format!("failed to list or watch {plural} of {api_version}: {self}"),
        }
    }
}

/// Classifies an error response by its code. Any other error is `Broken`, with the texts of all causes: kube's own text
/// ends at "client error".
impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            return Self::from_status(*status);
        }
        Self::Broken(with_causes(&error))
    }
}
