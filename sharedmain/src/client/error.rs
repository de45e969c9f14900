//! What is behind an error of the client: its root, and whether it may pass by itself.
use std::{error::Error as StdError, io};

use kube::client::AuthError;
use tower::BoxError;

type Link<'a> = &'a (dyn StdError + 'static);

/// A failure to obtain credentials. Its text shows neither what a credential plugin was given nor what it printed for
/// the process.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct CredentialError(String);

impl CredentialError {
    pub(super) fn new(text: String) -> Self {
        Self(text)
    }
}

/// kube's own text of what a credential plugin did shows its environment, its arguments and its output: each may be a
/// secret, and errors are written into logs, events and the readiness probe.
pub(crate) fn without_credentials(error: BoxError) -> BoxError {
    let auth = chain(&*error).find_map(|link| link.downcast_ref::<AuthError>()).map(auth_text);
    auth.map_or(error, |text| CredentialError(text).into())
}

/// The first line of thought of a user is about the last error in the chain: what is above only says what was
/// being tried.
pub(crate) fn root(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        kube::Error::SerdeError(e) => format!("its answer is not that of an API server: {e}"),
        _ => match find::<AuthError>(error) {
            Some(auth) => auth_text(auth),
            None => chain(error).last().map(plain).unwrap_or_else(|| error.to_string()),
        },
    }
}

/// Refused or reset connections, time-outs, names that do not resolve, 429 and 5xx may pass by themselves.
/// Credentials that are refused, bad TLS and what is malformed do not.
pub(crate) fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => {
            find::<rustls::Error>(error).is_none()
                && find::<AuthError>(error).is_none()
                && find::<CredentialError>(error).is_none()
        }
        _ => false,
    }
}

pub(crate) fn is_unauthorized(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 401)
}

fn plain(error: Link<'_>) -> String {
    match error.downcast_ref::<io::Error>() {
        Some(io) if io.kind() == io::ErrorKind::TimedOut => "it does not answer (timed out)".into(),
        _ => error.to_string(),
    }
}

/// kube's text without the command of an auth provider, its environment and its output, which may be secrets. Only the
/// standard error is shown.
fn auth_text(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecRun { status, out, .. } => {
            let stderr = String::from_utf8_lossy(&out.stderr);
            let stderr: String = stderr.trim().chars().take(500).collect();
            format!("the credential plugin failed ({status}): {stderr}")
        }
        other => other.to_string(),
    }
}

/// The error and all its sources, those included that an `io::Error` wraps: its own `source` passes over them.
pub(crate) fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = Link<'a>> {
    std::iter::successors(Some(error), |error| next(*error))
}

fn next<'a>(error: Link<'a>) -> Option<Link<'a>> {
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => Some(wrapped as Link<'a>),
        None => error.source(),
    }
}

fn find<T: StdError + 'static>(error: &kube::Error) -> Option<&T> {
    chain(error).find_map(|link| link.downcast_ref::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn api(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure("said no", "Reason").with_code(code)))
    }
    fn service(error: impl StdError + Send + Sync + 'static) -> kube::Error {
        kube::Error::Service(Box::new(error))
    }

    #[test]
    fn a_busy_or_failing_server_may_pass_and_a_refusal_does_not() {
        for (code, passes) in
            [(429, true), (500, true), (503, true), (401, false), (403, false), (404, false)]
        {
            assert_eq!(may_pass(&api(code)), passes, "{code}");
        }
    }

    #[test]
    fn a_broken_connection_may_pass_and_bad_tls_does_not() {
        assert!(may_pass(&service(io::Error::from(io::ErrorKind::ConnectionRefused))));
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        let wrapped = service(io::Error::new(io::ErrorKind::InvalidData, expired));
        assert!(!may_pass(&wrapped));
        assert!(root(&wrapped).contains("Expired"), "{}", root(&wrapped));
    }

    #[test]
    fn the_root_is_what_is_told() {
        #[derive(Debug, thiserror::Error)]
        #[error("connecting")]
        struct Outer(#[source] io::Error);
        assert_eq!(root(&service(Outer(io::Error::other("no route")))), "no route");
        assert_eq!(root(&api(401)), "said no (401)");
    }

    #[cfg(unix)]
    #[test]
    fn a_plugins_output_is_not_told_but_its_complaint_is() {
        use std::os::unix::process::ExitStatusExt;
        let out = std::process::Output {
            status: std::process::ExitStatus::from_raw(256),
            stdout: b"hunter2".to_vec(),
            stderr: b"please log in\n".to_vec(),
        };
        let failed = || AuthError::AuthExecRun {
            cmd: r#"SECRET="hunter2" "plugin" "--secret=hunter2""#.into(),
            status: out.status,
            out: out.clone(),
        };
        let at_the_start = kube::Error::Auth(failed());
        assert!(root(&at_the_start).contains("please log in") && !root(&at_the_start).contains("hunter2"));
        let later = kube::Error::Service(without_credentials(failed().into()));
        let all: Vec<_> = chain(&later).map(ToString::to_string).collect();
        let told = format!("{all:?} {later:?} {}", root(&later));
        assert!(told.contains("please log in") && !told.contains("hunter2"), "{told}");
        assert!(!may_pass(&later));
        let other = without_credentials(io::Error::other("no route").into());
        assert_eq!(other.to_string(), "no route");
    }
}
