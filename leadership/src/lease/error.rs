//! The errors of attempts to acquire, renew or release a lease.

use std::time::Duration;

use kube_leader_election::Error as LockError;
use reknit_injection::internal::{retry_after_of, retry_after_of_status, with_causes};

/// The error of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LeaseError {
    /// Another client changed or deleted the lease since it was read. The lease has to be read again.
    #[error("another client changed or deleted the lease: {0}")]
    Conflict(String),
    /// Another process holds the lease, or the lease does not exist.
    #[error("the lease is not held by this process")]
    NotHeld,
    /// The lease was certainly not written.
    #[error("{0}")]
    NotWritten(String),
    /// A write got no answer, or one that cannot be understood. It may have been applied.
    #[error("cannot tell whether the lease was written: {0}")]
    MaybeWritten(String),
}

/// Returns the wait that the API server asked for when it refused an attempt.
pub(crate) fn asked_wait(error: &LockError) -> Option<Duration> {
    match error {
        LockError::ApiError { response } => retry_after_of_status(response),
        LockError::Kube(error)
        | LockError::GetLease(error)
        | LockError::CreateLease(error)
        | LockError::AcquireLease(error)
        | LockError::RenewLease(error)
        | LockError::ReleaseLease(error) => retry_after_of(error),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Read,
    Create,
    Update,
}

impl From<LockError> for LeaseError {
    fn from(error: LockError) -> Self {
        let (error, request) = match error {
            LockError::ReleaseLockWhenNotLeading { .. } => return Self::NotHeld,
            LockError::ApiError { response } => (kube::Error::Api(response), Request::Read),
            LockError::Kube(error) | LockError::GetLease(error) => (error, Request::Read),
            LockError::CreateLease(error) => (error, Request::Create),
            LockError::AcquireLease(error)
            | LockError::RenewLease(error)
            | LockError::ReleaseLease(error) => (error, Request::Update),
            other => return Self::MaybeWritten(other.to_string()),
        };
        let (code, message) = match error {
            kube::Error::Api(status) => (status.code, status.message),
            error => (0, with_causes(&error)),
        };
        match (code, request) {
            (404, Request::Read) => Self::NotHeld,
            (404, Request::Create) => Self::NotWritten(
                "the lease cannot be created: its namespace does not exist; create it, or set SYSTEM_NAMESPACE to the \
                 one this process runs in"
                    .into(),
            ),
            (409, _) | (404, Request::Update) => Self::Conflict(message),
            (403, _) if is_about_permissions(&message) => Self::NotWritten(format!(
                "not allowed to elect a leader, which requires get, create and patch on leases: {message}"
            )),
            (_, Request::Read) => Self::NotWritten(format!("cannot read the lease: {message}")),
            (400..500, _) => Self::NotWritten(format!("the API server refused the lease: {message}")),
            _ => Self::MaybeWritten(message),
        }
    }
}

/// Returns true for the 403 of an authorizer: `User "x" cannot create resource "leases"…`. Admission answers with 403 too,
/// because of a quota or a terminating namespace for example.
fn is_about_permissions(message: &str) -> bool {
    message.contains("\" cannot ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use kube::core::Status;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Connect(#[source] io::Error);

    #[test]
    fn only_the_403_of_an_authorizer_is_about_permissions() {
        let denied = r#"User "system:serviceaccount:a:b" cannot create resource "leases" in API group "coordination.k8s.io""#;
        for (reason, prefix) in [
            (denied, "not allowed to elect a leader, which requires get, create and patch on leases: "),
            (
                "exceeded quota: few, requested: count/leases.coordination.k8s.io=1",
                "the API server refused the lease: ",
            ),
            (
                "unable to create new content in namespace a because it is being terminated",
                "the API server refused the lease: ",
            ),
        ] {
            let message = format!("leases.coordination.k8s.io \"x\" is forbidden: {reason}");
            let status = Status::failure(&message, "Forbidden").with_code(403).boxed();
            let error = LeaseError::from(LockError::CreateLease(kube::Error::Api(status)));
            assert_eq!(error.to_string(), format!("{prefix}{message}"));
        }
    }

    #[test]
    fn the_causes_of_a_failed_request_are_in_the_message() {
        let refused =
            || kube::Error::Service(Box::new(Connect(io::Error::from(io::ErrorKind::ConnectionRefused))));
        for error in
            [LockError::GetLease(refused()), LockError::RenewLease(refused()), LockError::Kube(refused())]
        {
            let message = LeaseError::from(error).to_string();
            assert!(message.ends_with("client error (Connect): connection refused"), "{message}");
        }
    }
}
