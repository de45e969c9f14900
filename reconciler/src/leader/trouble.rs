//! Why an attempt at a lease failed, and how often to say so.

use std::{fmt, time::Duration};

use kube_leader_election::Error as LockError;
use tokio::time::Instant;

use crate::error::in_full;

/// How often the same trouble is complained of.
const EVERY: Duration = Duration::from_secs(60);

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Another write came first: read again.
    Race(String),
    /// There is nothing to release.
    NotHeld,
    /// The lease cannot be created because its namespace is absent.
    NoNamespace,
    /// The API server allows it to others only.
    Forbidden(String),
    /// The API server refused, and so wrote nothing.
    Refused(String),
    /// The lease could not be read.
    Unread(String),
    /// A write without an answer, or without one that can be understood: it may have been applied.
    Unanswered(String),
}

impl Trouble {
    pub(super) fn of(error: &LockError) -> Self {
        match error {
            LockError::ReleaseLockWhenNotLeading { .. } => Self::NotHeld,
            LockError::ApiError { response } => Self::refused(response).unwrap_or_else(Self::Unread),
            LockError::Kube(error) | LockError::GetLease(error) => match error {
                kube::Error::Api(status) if status.code == 404 => Self::NotHeld,
                kube::Error::Api(status) => Self::refused(status).unwrap_or_else(Self::Unread),
                _ => Self::Unread(in_full(error)),
            },
            LockError::CreateLease(kube::Error::Api(status)) if status.code == 404 => Self::NoNamespace,
            LockError::CreateLease(error)
            | LockError::AcquireLease(error)
            | LockError::RenewLease(error)
            | LockError::ReleaseLease(error) => match error {
                kube::Error::Api(status) => Self::refused(status).unwrap_or_else(Self::Unanswered),
                _ => Self::Unanswered(in_full(error)),
            },
            other => Self::Unanswered(other.to_string()),
        }
    }

    /// What the API server certainly did not do, and why; or its words, where it may have done it.
    fn refused(status: &kube::core::Status) -> Result<Self, String> {
        let message = status.message.clone();
        match status.code {
            409 => Ok(Self::Race(message)),
            403 => Ok(Self::Forbidden(message)),
            500.. => Err(message),
            _ => Ok(Self::Refused(message)),
        }
    }

    /// Whether the lease may bear our name in spite of the trouble.
    pub(super) fn may_have_written(&self) -> bool {
        matches!(self, Self::Unanswered(_))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Race(message) => write!(f, "the lease changed meanwhile: {message}"),
            Self::NotHeld => f.write_str("the lease is not held by this process"),
            Self::NoNamespace => f.write_str(
                "the lease cannot be created: its namespace does not exist; create it, or set SYSTEM_NAMESPACE to \
                 the one this process runs in",
            ),
            Self::Forbidden(message) => {
                write!(f, "not allowed to elect a leader, which takes get, create and patch on leases: {message}")
            }
            Self::Refused(message) => write!(f, "the API server refused the lease: {message}"),
            Self::Unread(message) => write!(f, "cannot read the lease: {message}"),
            Self::Unanswered(message) => write!(f, "cannot tell whether the lease was written: {message}"),
        }
    }
}

/// Keeps one trouble from filling the log.
#[derive(Debug, Default)]
pub(super) struct Complaints(Option<(Trouble, Instant)>);

impl Complaints {
    /// Whether to complain: of a new trouble at once, of the same one once a minute.
    pub(super) fn due(&mut self, trouble: &Trouble) -> bool {
        let now = Instant::now();
        if self.0.as_ref().is_some_and(|(last, at)| last == trouble && now.duration_since(*at) < EVERY) {
            return false;
        }
        self.0 = Some((trouble.clone(), now));
        true
    }

    /// The trouble is over: it is news if it comes back.
    pub(super) fn clear(&mut self) {
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
    fn what_is_behind_a_request_that_failed_is_told() {
        let down =
            || kube::Error::Service(Box::new(Connect(io::Error::from(io::ErrorKind::ConnectionRefused))));
        for error in [LockError::GetLease(down()), LockError::RenewLease(down()), LockError::Kube(down())] {
            let said = Trouble::of(&error).to_string();
            assert!(said.ends_with("client error (Connect): connection refused"), "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_trouble_is_complained_of_once_a_minute() {
        let mut complaints = Complaints::default();
        let trouble = Trouble::Forbidden("no".into());
        assert!(complaints.due(&trouble));
        tokio::time::advance(EVERY - Duration::from_secs(1)).await;
        assert!(!complaints.due(&trouble));
        assert!(complaints.due(&Trouble::NoNamespace));
        assert!(complaints.due(&trouble));
        tokio::time::advance(EVERY).await;
        assert!(complaints.due(&trouble));
        complaints.clear();
        assert!(complaints.due(&trouble));
    }
}
