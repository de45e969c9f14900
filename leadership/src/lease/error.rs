//! The errors of attempts to acquire, renew or release a lease.

use kube_leader_election::Error as LockError;

use reknit_injection::internal::with_causes;

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
                _ => Self::ReadFailed(with_causes(error)),
            },
            LockError::CreateLease(kube::Error::Api(status)) if status.code == 404 => Self::NoNamespace,
            LockError::CreateLease(error)
            | LockError::AcquireLease(error)
            | LockError::RenewLease(error)
            | LockError::ReleaseLease(error) => match error {
                kube::Error::Api(status) => Self::refused(status).unwrap_or_else(Self::MaybeWritten),
                _ => Self::MaybeWritten(with_causes(error)),
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
}
