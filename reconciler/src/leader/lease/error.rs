//! The errors of attempts to acquire, renew or release a lease, and a limit on logging them.

use std::time::Duration;

use kube_leader_election::Error as LockError;
use tokio::time::Instant;

use crate::error::in_full;

/// The interval at which a repeated error is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The error of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LeaseError {
    /// Another client changed the lease since it was read. The lease has to be read again.
    #[error("the lease was changed by another write: {0}")]
    Conflict(String),
    /// Another process holds the lease, or the lease does not exist.
    #[error("the lease is not held by this process")]
    NotHeld,
    #[error(
        "the lease cannot be created: its namespace does not exist; create it, or set SYSTEM_NAMESPACE to the one \
         this process runs in"
    )]
    NoNamespace,
    #[error("not allowed to elect a leader, which requires get, create and patch on leases: {0}")]
    Forbidden(String),
    /// The API server refused the write for another reason, and so did not apply it.
    #[error("the API server refused the lease: {0}")]
    Refused(String),
    #[error("cannot read the lease: {0}")]
    ReadFailed(String),
    /// A write got no answer, or one that cannot be understood. It may have been applied.
    #[error("cannot tell whether the lease was written: {0}")]
    MaybeWritten(String),
}

impl From<&LockError> for LeaseError {
    fn from(error: &LockError) -> Self {
        match error {
            LockError::ReleaseLockWhenNotLeading { .. } => Self::NotHeld,
            LockError::ApiError { response } => Self::refused(response).unwrap_or_else(Self::ReadFailed),
            LockError::Kube(error) | LockError::GetLease(error) => match error {
                kube::Error::Api(status) if status.code == 404 => Self::NotHeld,
                kube::Error::Api(status) => Self::refused(status).unwrap_or_else(Self::ReadFailed),
                _ => Self::ReadFailed(in_full(error)),
            },
            LockError::CreateLease(kube::Error::Api(status)) if status.code == 404 => Self::NoNamespace,
            LockError::CreateLease(error)
            | LockError::AcquireLease(error)
            | LockError::RenewLease(error)
            | LockError::ReleaseLease(error) => match error {
                kube::Error::Api(status) => Self::refused(status).unwrap_or_else(Self::MaybeWritten),
                _ => Self::MaybeWritten(in_full(error)),
            },
            other => Self::MaybeWritten(other.to_string()),
        }
    }
}

impl LeaseError {
    /// Returns the error of a request that the API server certainly did not apply. If the API server may have applied
    /// the request, returns its message as `Err`.
    fn refused(status: &kube::core::Status) -> Result<Self, String> {
        let message = status.message.clone();
        match status.code {
            409 => Ok(Self::Conflict(message)),
            403 => Ok(Self::Forbidden(message)),
            500.. => Err(message),
            _ => Ok(Self::Refused(message)),
        }
    }

    /// Returns true if the lease may name this process as its holder despite the error.
    pub(crate) fn may_have_written(&self) -> bool {
        matches!(self, Self::MaybeWritten(_))
    }
}

/// Allows a new error to be logged at once, and a repeated one once a minute. Holds the last logged error and its time.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Option<(LeaseError, Instant)>);

impl LogLimit {
    /// Returns true if this error is to be logged now, and records it as the last logged error.
    pub(crate) fn allows(&mut self, error: &LeaseError) -> bool {
        let now = Instant::now();
        let is_repeated = |(last, logged): &(LeaseError, Instant)| {
            last == error && now.duration_since(*logged) < LOG_INTERVAL
        };
        if self.0.as_ref().is_some_and(is_repeated) {
            return false;
        }
        self.0 = Some((error.clone(), now));
        true
    }

    /// Forgets the last error, so that the next one is logged at once.
    pub(crate) fn reset(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Connect(#[source] io::Error);

    #[test]
    fn the_causes_of_a_failed_request_are_in_the_message() {
        let refused =
            || kube::Error::Service(Box::new(Connect(io::Error::from(io::ErrorKind::ConnectionRefused))));
        for error in
            [LockError::GetLease(refused()), LockError::RenewLease(refused()), LockError::Kube(refused())]
        {
            let message = LeaseError::from(&error).to_string();
            assert!(message.ends_with("client error (Connect): connection refused"), "{message}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_error_is_logged_once_a_minute() {
        let mut limit = LogLimit::default();
        let error = LeaseError::Forbidden("no".into());
        assert!(limit.allows(&error));
        tokio::time::advance(LOG_INTERVAL - Duration::from_secs(1)).await;
        assert!(!limit.allows(&error));
        assert!(limit.allows(&LeaseError::NoNamespace));
        assert!(limit.allows(&error));
        tokio::time::advance(LOG_INTERVAL).await;
        assert!(limit.allows(&error));
        limit.reset();
        assert!(limit.allows(&error));
    }
}
