//! The errors of a control plane.

use std::{error, fmt, time::Duration};

use reknit_injection::internal::with_causes;

/// An error of a [`ControlPlane`](crate::ControlPlane): what failed, and why.
///
/// `Debug` prints the message and its causes, because a test that fails by `?` or `unwrap` shows this output.
#[derive(thiserror::Error)]
#[error("{message}")]
pub struct Error {
    message: String,
    source: Option<BoxError>,
}

type BoxError = Box<dyn error::Error + Send + Sync>;

impl Error {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// The error of an action that failed because of another error: `cannot read /x`.
    pub(super) fn cannot<E: Into<BoxError>>(action: impl fmt::Display) -> impl FnOnce(E) -> Self {
        let message = format!("cannot {action}");
        |source| Self { message, source: Some(source.into()) }
    }

    /// The error of a condition that did not hold in time. `last` is the result of the last check.
    pub(super) fn timeout(what: &str, limit: Duration, last: &str) -> Self {
        Self::new(format!("{what} did not happen within {} s: {last}", limit.as_secs()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_causes(self))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn debug_shows_the_message_and_its_causes() {
        let error = Error::cannot("read /x")(io::Error::other("disk failure"));
        assert_eq!(format!("{error:?}"), "cannot read /x: disk failure");
    }
}
