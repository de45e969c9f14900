//! The root causes of client errors: their texts, without credentials, and whether they are transient.
use std::{error::Error as StdError, io, process::Output};

use kube::client::AuthError;
use tower::BoxError;

use super::{
    certificate::{WaysOut, explain},
    transport::origin::NotFromApiServer,
};

/// An error in a chain of sources.
type ErrorRef<'a> = &'a (dyn StdError + 'static);

/// A failure to obtain credentials. Its text contains no credentials: neither what a credential plugin was given nor
/// what it printed on standard output.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct CredentialError(pub(super) String);

/// A TLS handshake that failed, with what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct TlsError(String);

/// Replaces errors whose text is not for operators: kube's error of failed credentials contains the environment,
/// arguments and output of a plugin, which may be secrets, and rustls's error of a refused certificate does not say
/// what to do. Errors end up in logs, events and the readiness probe. Other errors stay as they are. A server that refuses
/// this client does not say why, so the text includes what is wrong with the client certificate.
pub(super) fn explained(error: BoxError, validity_error: impl FnOnce() -> Option<String>) -> BoxError {
    if let Some(text) = chain(&*error).find_map(|link| link.downcast_ref::<AuthError>()).map(auth_text) {
        return CredentialError(text).into();
    }
    let Some(refusal) = chain(&*error).find_map(|link| link.downcast_ref::<rustls::Error>()) else {
        return error;
    };
    let is_of_server = matches!(refusal, rustls::Error::AlertReceived(_));
    let why = is_of_server.then(validity_error).flatten().map_or_else(String::new, |why| format!(": {why}"));
    TlsError(explain(refusal, &WaysOut::KUBECONFIG) + &why).into()
}

/// Returns the message of an API server's response or of failed credentials, or else the text of the last error in the
/// chain: the errors before it only say what was being attempted.
pub(crate) fn root_cause(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        kube::Error::SerdeError(e) => format!("the response is not from a Kubernetes API server: {e}"),
        _ => match find_in_chain::<AuthError>(error) {
            Some(auth) => auth_text(auth),
            None => chain(error).last().map_or_else(|| error.to_string(), ToString::to_string),
        },
    }
}

/// Returns whether the request may succeed later: refused or reset connections, timeouts, names that do not resolve,
/// 429 and 5xx. Rejected credentials, invalid TLS and malformed responses are permanent.
pub(crate) fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => {
            find_in_chain::<TlsError>(error).is_none()
                && find_in_chain::<AuthError>(error).is_none()
                && find_in_chain::<CredentialError>(error).is_none()
                && find_in_chain::<NotFromApiServer>(error).is_none()
        }
        _ => false,
    }
}

/// Returns kube's text, without the command, environment and standard output of a credential plugin.
fn auth_text(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecRun { out, .. } => plugin_failure(out),
        other => other.to_string(),
    }
}

/// Describes a failed credential plugin by its exit status and its standard error.
pub(super) fn plugin_failure(output: &Output) -> String {
    let stderr: String = String::from_utf8_lossy(&output.stderr).trim().chars().take(500).collect();
    format!("the credential plugin failed ({}): {stderr}", output.status)
}

/// Iterates over the error and its sources, including an error that an [`io::Error`] wraps, which `source` would skip.
pub(crate) fn chain<'a>(error: ErrorRef<'a>) -> impl Iterator<Item = ErrorRef<'a>> {
    std::iter::successors(Some(error), |error| source(*error))
}

fn source<'a>(error: ErrorRef<'a>) -> Option<ErrorRef<'a>> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped as ErrorRef<'a>),
        None => error.source(),
    }
}

fn find_in_chain<T: StdError + 'static>(error: &kube::Error) -> Option<&T> {
    chain(error).find_map(|link| link.downcast_ref::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn api(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure("denied", "Reason").with_code(code)))
    }
    fn service(error: impl StdError + Send + Sync + 'static) -> kube::Error {
        kube::Error::Service(Box::new(error))
    }

    #[test]
    fn an_overloaded_server_is_transient_and_a_refusal_is_permanent() {
        for (code, transient) in
            [(429, true), (500, true), (503, true), (401, false), (403, false), (404, false)]
        {
            assert_eq!(is_transient(&api(code)), transient, "{code}");
        }
    }

    #[test]
    fn a_broken_connection_is_transient_and_invalid_tls_is_permanent() {
        assert!(is_transient(&service(io::Error::from(io::ErrorKind::ConnectionRefused))));
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        let refused = io::Error::new(io::ErrorKind::InvalidData, expired);
        let error = kube::Error::Service(explained(refused.into(), || {
            Some("not for the certificate of a server".into())
        }));
        assert!(!is_transient(&error));
        assert!(root_cause(&error).contains("Expired; renew the certificate"), "{}", root_cause(&error));
    }

    #[test]
    fn the_root_cause_is_the_last_error_of_the_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("connecting")]
        struct Outer(#[source] io::Error);
        assert_eq!(root_cause(&service(Outer(io::Error::other("no route")))), "no route");
        assert_eq!(root_cause(&api(401)), "denied (401)");
    }

    #[cfg(unix)]
    #[test]
    fn the_standard_output_of_a_plugin_is_not_shown_and_its_standard_error_is() {
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
        let initial = kube::Error::Auth(failed());
        assert!(root_cause(&initial).contains("please log in") && !root_cause(&initial).contains("hunter2"));
        let later = kube::Error::Service(explained(failed().into(), || None));
        let all: Vec<_> = chain(&later).map(ToString::to_string).collect();
        let shown = format!("{all:?} {later:?} {}", root_cause(&later));
        assert!(shown.contains("please log in") && !shown.contains("hunter2"), "{shown}");
        assert!(!is_transient(&later));
        let other = explained(io::Error::other("no route").into(), || None);
        assert_eq!(other.to_string(), "no route");
    }

    #[test]
    fn a_server_that_refuses_an_expired_client_certificate_is_reported_with_the_expiry() {
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateExpired);
        let refused = io::Error::new(io::ErrorKind::InvalidData, alert);
        let expired = || Some("the client certificate expired on 2020-01-01T00:00:00Z".into());
        let error = kube::Error::Service(explained(refused.into(), expired));
        assert!(
            root_cause(&error)
                .ends_with("its certificate: the client certificate expired on 2020-01-01T00:00:00Z"),
            "{}",
            root_cause(&error)
        );
        assert!(!is_transient(&error));
    }
}
