//! Requests of our own to the API server, and what went wrong with them.

use std::{error::Error, fmt, time::Duration};

use http::Request;
use kube::{
    client::{Body, DynBody},
    core::{Status, discovery::ApiResource},
};
use tokio::time::timeout;

use crate::transport::{Transport, collect, refusal};

/// Longer than any healthy answer takes; kube's client has no limit of its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Why a list or a watch failed, by what is to be done about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the changes since the last version are no longer there: {0}")]
    Gone(String),
    #[error("the API server does not know it: {0}")]
    Absent(String),
    /// It answered, but not with what was asked for.
    #[error("{message} ({code})")]
    Refused { code: u16, message: String },
    /// A watch told of an error, so it may have left something out.
    #[error("the watch failed: {0}")]
    Watch(String),
    #[error("no answer within {} s", .0.as_secs())]
    Silence(Duration),
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// So many watches were opened, and none of them told anything.
    #[error(
        "{0} watches in a row told nothing, not even a bookmark: is there a proxy in between that holds their events \
         back or ends them?"
    )]
    Unheard(u32),
    #[error("{0}")]
    Broken(String),
}

impl Failure {
    fn of_code(code: u16, message: String) -> Self {
        match code {
            410 => Self::Gone(message),
            404 => Self::Absent(message),
            code => Self::Refused { code, message },
        }
    }

    /// What an `ERROR` event of a watch holds.
    pub(crate) fn of_event(status: &Status) -> Self {
        match status.code {
            410 => Self::Gone(status.message.clone()),
            _ => Self::Watch(status.message.clone()),
        }
    }

    pub(crate) fn malformed(error: impl fmt::Display) -> Self {
        Self::Malformed(error.to_string())
    }

    /// In words for whoever is to do something about it.
    pub(crate) fn explain(&self, kind: &ApiResource, namespace: Option<&str>) -> String {
        let ApiResource { api_version, kind, plural, .. } = kind;
        match self {
            Self::Absent(_) => {
                let asked = namespace.map_or_else(String::new, |namespace| {
                    format!("; if it lies in no namespace, it cannot be selected by namespace {namespace}")
                });
                format!(
                    "the API server does not know {plural} of {api_version} ({kind}): \
                     if it is a custom resource, its CustomResourceDefinition has to be installed{asked}"
                )
            }
            Self::Refused { code: 403, message } => {
                format!("{message}: this process needs the verbs list and watch on {plural} of {api_version}")
            }
            _ => format!("cannot follow {plural} of {api_version}: {self}"),
        }
    }
}

/// The whole chain of causes: kube's own text ends at "client error".
impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            return Self::of_code(status.code, status.message);
        }
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let said = error.to_string();
            if !text.contains(&said) {
                text = format!("{text}: {said}");
            }
            cause = error.source();
        }
        Self::Broken(text)
    }
}

/// Sends a request; the body of a successful answer is still to be read. (Kube's `request` copies each body twice,
/// and logs each answer that is no `Status`.)
pub(crate) async fn open(transport: &Transport, request: Request<Vec<u8>>) -> Result<Box<DynBody>, Failure> {
    let answer = transport.send(request.map(Body::from)).await?;
    let code = answer.status();
    let body = answer.into_body();
    if code.is_success() {
        return Ok(body);
    }
    let bytes = collect(body).await?;
    Err(Failure::of_code(code.as_u16(), refusal(code, &bytes).message))
}

/// Sends a request and reads its answer.
pub(crate) async fn fetch(transport: &Transport, request: Request<Vec<u8>>) -> Result<bytes::Bytes, Failure> {
    let whole = async { Ok(collect(open(transport, request).await?).await?) };
    timeout(PATIENCE, whole).await.unwrap_or(Err(Failure::Silence(PATIENCE)))
}
