//! The first requests of a process: patient with what may pass, and plain about what does not.
use std::{fmt, future::Future, time::Duration};

use kube::Client;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    client::certificate, client::error as cause, client::kube_version::Version, client::kubeconfig::Access,
    process::failure::Failure,
};

/// No single attempt takes longer.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How often a wait that goes on is mentioned.
const SAID_EVERY: Duration = Duration::from_secs(10);
/// The pause after the first attempt doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// An API server at the start of a process, and how long to wait for it.
pub(crate) struct Startup<'a> {
    access: &'a Access,
    patience: Duration,
    until: Instant,
}

/// Why an attempt failed.
pub(crate) enum Trouble {
    /// There was no answer in time.
    NoAnswer,
    /// The client's error.
    Error(Box<kube::Error>),
}

impl<'a> Startup<'a> {
    /// The patience starts now and is shared by all requests.
    pub(crate) fn new(access: &'a Access, patience: Duration) -> Self {
        Self { access, patience, until: Instant::now() + patience }
    }

    /// Whether the server answers, takes the credentials, and is new enough.
    pub(crate) async fn check_version(&self, client: &Client, minimum: &Version) -> Result<Version, Failure> {
        let answer = self.persist(|| client.apiserver_version()).await.map_err(|e| self.trouble(&e))?;
        let version: Version = answer.git_version.parse().map_err(|e| self.failure(&e))?;
        if version.satisfies(minimum) {
            return Ok(version);
        }
        Err(self.failure(&format!(
            "it is Kubernetes {version}, and {minimum} or newer is needed (KUBERNETES_MIN_VERSION changes that)"
        )))
    }

    /// Repeats the request while it fails in a way that may pass, and says so: at once, and every ten seconds.
    pub(crate) async fn persist<T, F>(&self, request: impl Fn() -> F) -> Result<T, Trouble>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let mut pause = FIRST_PAUSE;
        let mut said: Option<Instant> = None;
        loop {
            let trouble = match attempt(request()).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => trouble,
            };
            let left = self.until.saturating_duration_since(Instant::now());
            if !trouble.may_pass() || left.is_zero() {
                return Err(trouble);
            }
            if said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
                said = Some(Instant::now());
                let server = &self.access.config.cluster_url;
                tracing::warn!(
                    "the API server at {server} cannot be used yet: {trouble}; trying for {left:.0?} more"
                );
            }
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// What stands in the way, as the one line that ends the process.
    pub(crate) fn failure(&self, why: &dyn fmt::Display) -> Failure {
        let Access { config, origin } = self.access;
        let through = config.proxy_url.as_ref().map(|proxy| {
            format!(
                " through the proxy {}:{}",
                proxy.host().unwrap_or_default(),
                proxy.port_u16().unwrap_or(80)
            )
        });
        let through = through.unwrap_or_default();
        Failure::new(format!(
            "the API server at {}{through} cannot be used ({origin}): {why}",
            config.cluster_url
        ))
    }

    /// The same for an error of a request.
    pub(crate) fn trouble(&self, trouble: &Trouble) -> Failure {
        let why = match trouble {
            Trouble::Error(e) if cause::is_unauthorized(e) => {
                let complaint = certificate::complaint(&self.access.config.auth_info);
                format!("it refuses these credentials: {}", complaint.unwrap_or_else(|| cause::root(e)))
            }
            passing if passing.may_pass() => format!("{passing}; gave up after {:.0?}", self.patience),
            other => other.to_string(),
        };
        self.failure(&why)
    }
}

async fn attempt<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Trouble> {
    match timeout(ATTEMPT, request).await {
        Ok(answer) => answer.map_err(|e| Trouble::Error(Box::new(e))),
        Err(_) => Err(Trouble::NoAnswer),
    }
}

impl Trouble {
    fn may_pass(&self) -> bool {
        match self {
            Self::NoAnswer => true,
            Self::Error(e) => cause::may_pass(e),
        }
    }

    /// Whether the server said that there is no such object.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Error(e) if matches!(&**e, kube::Error::Api(status) if status.code == 404))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("it does not answer (timed out)"),
            Self::Error(e) => f.write_str(&cause::root(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::client::kubeconfig::Origin;
    use kube::core::Status;

    fn access() -> Access {
        let config = kube::Config::new("https://api.example.com:6443".parse().unwrap());
        Access { config, origin: Origin::Pod }
    }
    fn api(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure("said no", "Reason").with_code(code)))
    }
    fn refused() -> kube::Error {
        kube::Error::Service(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)))
    }

    /// Answers in turn, the last for ever; says how often and until when it was asked.
    async fn asked(answers: &[fn() -> kube::Result<u8>]) -> (Result<u8, String>, usize, Duration) {
        let access = access();
        let startup = Startup::new(&access, Duration::from_secs(60));
        let (start, count) = (Instant::now(), RefCell::new(0));
        let answer = startup
            .persist(async || {
                let at = *count.borrow();
                *count.borrow_mut() += 1;
                answers[at.min(answers.len() - 1)]()
            })
            .await;
        let asked = *count.borrow();
        (answer.map_err(|trouble| startup.trouble(&trouble).to_string()), asked, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_for_a_minute() {
        let (answer, asked, took) = asked(&[|| Err(refused())]).await;
        assert_eq!(
            answer.unwrap_err(),
            "the API server at https://api.example.com:6443/ cannot be used (the service account of this pod): \
             connection refused; gave up after 60s"
        );
        assert!((15..30).contains(&asked), "{asked}");
        assert!((60..62).contains(&took.as_secs()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_within_the_minute_is_no_failure() {
        let (answer, asked, _) =
            asked(&[|| Err(refused()), || Err(api(503)), || Err(api(429)), || Ok(7)]).await;
        assert_eq!((answer, asked), (Ok(7), 4));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_pass_fails_at_once() {
        let (answer, asked, took) = asked(&[|| Err(api(401))]).await;
        assert!(answer.unwrap_err().ends_with("it refuses these credentials: said no (401)"));
        assert_eq!((asked, took), (1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_is_given_up_after_the_minute() {
        let access = access();
        let startup = Startup::new(&access, Duration::from_secs(60));
        let start = Instant::now();
        let answer = startup.persist(std::future::pending::<kube::Result<()>>).await;
        assert!(startup.trouble(&answer.unwrap_err()).to_string().contains("does not answer"));
        assert!((60..72).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    }
}
