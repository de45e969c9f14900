//! The first requests of a process. Transient errors are retried until the startup timeout ends.
use std::{fmt, future::Future, io, time::Duration};

use kube::{Client, core::Status};
use reknit_injection::internal::retry_after_of;
use semver::Version;
use tokio::time::{Instant, sleep, timeout};

use super::failure::Failure;
use crate::client::{
    credentials::Credentials,
    error::{is_transient, root_cause},
    kube_version,
    kubeconfig::Access,
};

/// The timeout of a single attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which failed attempts are logged.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(4);

/// Sends the first requests of a process to an API server, with a timeout that all of them share.
pub(crate) struct Startup<'a> {
    access: &'a Access,
    credentials: &'a Credentials,
    timeout: Duration,
    deadline: Instant,
}

impl<'a> Startup<'a> {
    /// Starts the timeout.
    pub(crate) fn new(access: &'a Access, credentials: &'a Credentials, timeout: Duration) -> Self {
        Self { access, credentials, timeout, deadline: Instant::now() + timeout }
    }

    /// Checks that the server responds, accepts the credentials and is new enough, if it tells its version to this
    /// account. Returns the text of its version.
    pub(crate) async fn check_version(&self, client: &Client, minimum: &Version) -> Result<String, Failure> {
        let info = match self.retry(|| client.apiserver_version()).await {
            Ok(info) => info,
            Err(kube::Error::Api(status)) if refuses_only_the_version(&status) => {
                let error = status.message;
                tracing::warn!(error, %minimum, "the version of the API server may not be read, and is not checked");
                return Ok("unknown".into());
            }
            Err(error) => return Err(self.failure(&error)),
        };
        match kube_version::of_server(&info) {
            Some(version) if !kube_version::is_compatible(&version, minimum) => Err(Failure::new(format!(
                "kubernetes version \"v{version}\" is not compatible, need at least \"v{minimum}\" (this can be \
                 overridden with the env var \"KUBERNETES_MIN_VERSION\")"
            ))),
            Some(_) => Ok(info.git_version),
            None => {
                let version = info.git_version.as_str();
                tracing::warn!(version, %minimum, "the version of the API server cannot be read, and is not checked");
                Ok(info.git_version)
            }
        }
    }

    /// Repeats the request while it fails with a transient error, until the timeout. Logs the first failure, and after
    /// that at most one in ten seconds.
    pub(crate) async fn retry<T, F>(&self, request: impl Fn() -> F) -> kube::Result<T>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let mut backoff = FIRST_BACKOFF;
        let mut last_logged: Option<Instant> = None;
        loop {
            let timed_out = |_| Err(kube::Error::Service(io::Error::from(io::ErrorKind::TimedOut).into()));
            let error = match timeout(ATTEMPT_TIMEOUT, request()).await.unwrap_or_else(timed_out) {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let remaining = self.deadline.saturating_duration_since(Instant::now());
            if !is_transient(&error) || remaining.is_zero() {
                return Err(error);
            }
            if last_logged.is_none_or(|time| time.elapsed() >= LOG_INTERVAL) {
                last_logged = Some(Instant::now());
                let server = &self.access.config.cluster_url;
                tracing::warn!(
                    "{}; retrying for {remaining:.0?}",
                    describe(&error, &server, &root_cause(&error))
                );
            }
            let wait = backoff.max(retry_after_of(&error).unwrap_or_default());
            sleep(wait.min(remaining)).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Returns the error that ends the process after a failed request.
    pub(crate) fn failure(&self, error: &kube::Error) -> Failure {
        let Access { config, origin, .. } = self.access;
        let proxy = config.proxy_url.as_ref().map_or_else(String::new, |proxy| {
            let (host, port) = (proxy.host().unwrap_or_default(), proxy.port_u16().unwrap_or(80));
            format!(" through the proxy {host}:{port}")
        });
        let validity_error = self.credentials.validity_error();
        let cause = match (error, root_cause(error)) {
            (kube::Error::Api(status), cause) if status.code == 401 => {
                format!("you must be logged in to the server: {}", validity_error.clone().unwrap_or(cause))
            }
            (_, cause) if is_transient(error) => format!("{cause}; gave up after {:.0?}", self.timeout),
            (_, cause) => cause,
        };
        // A server may also close the connection of such a client, without a reason.
        let cause = match validity_error.filter(|why| !cause.contains(why.as_str())) {
            Some(why) => format!("{cause}; {why}"),
            None => cause,
        };
        let server = format_args!("{}{proxy} ({origin})", config.cluster_url);
        Failure::new(describe(error, &server, &cause))
    }
}

/// Returns false for the refusal of an impersonation, which is the answer to each request.
fn refuses_only_the_version(status: &Status) -> bool {
    status.code == 403 && !status.message.contains(" cannot impersonate")
}

/// Describes the error of a request. The text for a request without a response is kubectl's.
fn describe(error: &kube::Error, server: &dyn fmt::Display, cause: &str) -> String {
    match error {
        kube::Error::Api(_) | kube::Error::SerdeError(_) => {
            format!("request to the server {server} failed: {cause}")
        }
        _ => format!("unable to connect to the server {server}: {cause}"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::client::kubeconfig::Origin;

    fn test_access() -> Access {
        let access = Access::without_credentials("https://api.example.com:6443".parse().unwrap());
        Access { origin: Origin::Pod, ..access }
    }
    fn api(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure("denied", "Reason").with_code(code)))
    }
    fn refused() -> kube::Error {
        kube::Error::Service(Box::new(io::Error::from(io::ErrorKind::ConnectionRefused)))
    }

    /// Answers requests with these responses in turn, and repeats the last one. Returns the result, the number of
    /// requests, and the time that they took.
    async fn retry_with(responses: &[fn() -> kube::Result<u8>]) -> (Result<u8, String>, usize, Duration) {
        let access = test_access();
        let credentials = Credentials::load(&access, "test").unwrap();
        let startup = Startup::new(&access, &credentials, Duration::from_secs(60));
        let (start, count) = (Instant::now(), RefCell::new(0));
        let result = startup
            .retry(async || {
                let index = *count.borrow();
                *count.borrow_mut() += 1;
                responses[index.min(responses.len() - 1)]()
            })
            .await;
        let requests = *count.borrow();
        (result.map_err(|error| startup.failure(&error).to_string()), requests, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn transient_errors_are_retried_for_a_minute() {
        let (result, requests, took) = retry_with(&[|| Err(refused())]).await;
        assert_eq!(
            result.unwrap_err(),
            "unable to connect to the server https://api.example.com:6443/ (the service account of this pod): \
             connection refused; gave up after 60s"
        );
        assert!((15..30).contains(&requests), "{requests}");
        assert!((60..62).contains(&took.as_secs()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_succeeds_within_the_minute_returns_its_response() {
        let (result, requests, _) =
            retry_with(&[|| Err(refused()), || Err(api(503)), || Err(api(429)), || Ok(7)]).await;
        assert_eq!((result, requests), (Ok(7), 4));
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_errors_fail_at_once() {
        let (result, requests, took) = retry_with(&[|| Err(api(401))]).await;
        assert!(result.unwrap_err().ends_with("you must be logged in to the server: denied (401)"));
        assert_eq!((requests, took), (1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_of_a_server_that_never_responds_end_after_the_minute() {
        let access = test_access();
        let credentials = Credentials::load(&access, "test").unwrap();
        let startup = Startup::new(&access, &credentials, Duration::from_secs(60));
        let start = Instant::now();
        let result = startup.retry(std::future::pending::<kube::Result<()>>).await;
        assert!(startup.failure(&result.unwrap_err()).to_string().contains("timed out"));
        assert!((60..72).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    }
}
