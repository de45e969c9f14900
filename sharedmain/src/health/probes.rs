//! The probes of the kubelet: readiness and health of the process.
use std::{collections::BTreeMap, fmt, sync::Arc};

use axum::{
    Router,
    extract::{Query, State},
    http::StatusCode,
    routing::get,
};
use parking_lot::RwLock;

/// Checks of a running process.
pub(crate) trait HealthCheck: Send + Sync {
    /// Checks whether the process can do its work.
    fn readiness(&self) -> Vec<Check>;
    /// Checks for problems that a restart may solve.
    fn health(&self) -> Vec<Check>;
}

/// The result of one check. It is displayed as a line of the verbose output of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    name: String,
    problems: Vec<String>,
    /// What the process lacks. The check passes nevertheless.
    reports: Vec<String>,
    /// A fact about a check that passes.
    detail: Option<String>,
}

impl Check {
    /// Creates the result of the check with this name, which passes if there are no problems.
    pub(crate) fn new(name: impl Into<String>, problems: Vec<String>) -> Self {
        Self { name: name.into(), problems, reports: vec![], detail: None }
    }

    pub(crate) fn reports(self, reports: Vec<String>) -> Self {
        Self { reports, ..self }
    }

    pub(crate) fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    fn passes(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, problems, reports, detail } = self;
        match detail {
            _ if !self.passes() => {
                write!(f, "[-]{name} failed: {}", [&problems[..], reports].concat().join("; "))
            }
            _ if !reports.is_empty() => write!(f, "[!]{name} degraded: {}", reports.join("; ")),
            Some(detail) => write!(f, "[+]{name} ok: {detail}"),
            None => write!(f, "[+]{name} ok"),
        }
    }
}

/// Answers `GET /readiness` and `GET /health` during the whole life of the process, with 200 or 503, and the same under the
/// paths of kube-apiserver and controller-runtime. The body lists the checks if one of them fails, or with the parameter
/// `verbose`.
#[derive(Clone)]
pub(crate) struct Probes(Arc<RwLock<Phase>>);

enum Phase {
    Starting(String),
    Running(Arc<dyn HealthCheck>),
    Stopping,
}

impl Probes {
    /// Creates the probes of a starting process, which is healthy but not ready. `why` is the reason.
    pub(crate) fn starting(why: &str) -> Self {
        Self(Arc::new(RwLock::new(Phase::Starting(why.to_owned()))))
    }

    /// Uses this check from now on, unless the process is stopping.
    pub(crate) fn set_running(&self, check: Arc<dyn HealthCheck>) {
        let mut phase = self.0.write();
        if matches!(*phase, Phase::Starting(_)) {
            *phase = Phase::Running(check);
        }
    }

    /// Fails readiness from now on, so that the process gets no new requests. It stays healthy.
    pub(crate) fn set_stopping(&self) {
        *self.0.write() = Phase::Stopping;
    }

    pub(crate) fn router(&self) -> Router {
        let readiness = async |State(probes): State<Self>, parameters: Parameters| {
            respond("readiness", &probes.readiness(), &parameters)
        };
        let health = async |State(probes): State<Self>, parameters: Parameters| {
            respond("health", &probes.health(), &parameters)
        };
        let router = ["/readiness", "/readyz"]
            .into_iter()
            .fold(Router::new(), |router, path| router.route(path, get(readiness)));
        let paths = ["/health", "/healthz", "/livez"].into_iter();
        paths.fold(router, |router, path| router.route(path, get(health))).with_state(self.clone())
    }

    fn readiness(&self) -> Vec<Check> {
        match &*self.0.read() {
            Phase::Starting(why) => vec![Check::new("startup", vec![why.clone()])],
            Phase::Running(check) => check.readiness(),
            Phase::Stopping => vec![Check::new("shutdown", vec!["shutting down".into()])],
        }
    }

    fn health(&self) -> Vec<Check> {
        match &*self.0.read() {
            Phase::Running(check) => check.health(),
            Phase::Starting(_) | Phase::Stopping => vec![],
        }
    }
}

type Parameters = Query<BTreeMap<String, String>>;

fn respond(probe: &str, checks: &[Check], parameters: &Parameters) -> (StatusCode, String) {
    let passes = checks.iter().all(Check::passes);
    if passes && !parameters.contains_key("verbose") {
        return (StatusCode::OK, "ok\n".into());
    }
    let mut body: String = checks.iter().map(|check| format!("{check}\n")).collect();
    body += &format!("{probe} check {}\n", if passes { "passed" } else { "failed" });
    (if passes { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, body)
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    struct Failing;
    impl HealthCheck for Failing {
        fn readiness(&self) -> Vec<Check> {
            let problems = ["services: waiting", "routes: waiting"].map(str::to_owned);
            vec![Check::new("informers/lamps", problems.into()), Check::new("leader-election/lamps", vec![])]
        }
        fn health(&self) -> Vec<Check> {
            vec![Check::new("reconciles/lamps", vec!["a worker is stuck".into()])]
        }
    }
    struct Passing;
    impl HealthCheck for Passing {
        fn readiness(&self) -> Vec<Check> {
            let leads = Check::new("leader-election/lamps", vec![]).detail("leads lamps.00-of-02");
            vec![Check::new("informers/lamps", vec![]), leads]
        }
        fn health(&self) -> Vec<Check> {
            vec![]
        }
    }

    async fn get(probes: &Probes, path: &str) -> (u16, String) {
        let response =
            probes.router().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_starting_process_is_healthy_and_unready_with_a_reason() {
        let probes = Probes::starting("waiting for the API server");
        let reason = "[-]startup failed: waiting for the API server\nreadiness check failed\n";
        assert_eq!(get(&probes, "/readiness").await, (503, reason.into()));
        assert_eq!(get(&probes, "/health").await, (200, "ok\n".into()));
    }

    #[tokio::test]
    async fn a_failed_probe_lists_all_checks_and_the_reasons() {
        let probes = Probes::starting("starting");
        probes.set_running(Arc::new(Failing));
        let readiness = "[-]informers/lamps failed: services: waiting; routes: waiting\n\
                         [+]leader-election/lamps ok\nreadiness check failed\n";
        assert_eq!(get(&probes, "/readiness").await, (503, readiness.into()));
        assert_eq!(get(&probes, "/readiness?verbose").await, (503, readiness.into()));
        let health = "[-]reconciles/lamps failed: a worker is stuck\nhealth check failed\n";
        assert_eq!(get(&probes, "/health").await, (503, health.into()));
    }

    #[tokio::test]
    async fn a_passed_probe_lists_its_checks_if_asked_to() {
        let probes = Probes::starting("starting");
        probes.set_running(Arc::new(Passing));
        for path in ["/readiness", "/readyz", "/health", "/healthz", "/livez"] {
            assert_eq!(get(&probes, path).await, (200, "ok\n".into()), "{path}");
        }
        let readiness = "[+]informers/lamps ok\n[+]leader-election/lamps ok: leads lamps.00-of-02\n\
                         readiness check passed\n";
        for query in ["verbose", "verbose=true", "a=b&verbose="] {
            assert_eq!(get(&probes, &format!("/readiness?{query}")).await, (200, readiness.into()));
        }
        assert_eq!(get(&probes, "/health?verbose").await, (200, "health check passed\n".into()));
    }

    #[tokio::test]
    async fn a_stopping_process_stays_unready_and_healthy() {
        let probes = Probes::starting("starting");
        probes.set_stopping();
        probes.set_running(Arc::new(Failing));
        let reason = "[-]shutdown failed: shutting down\nreadiness check failed\n";
        assert_eq!(get(&probes, "/readiness").await, (503, reason.into()));
        assert_eq!(get(&probes, "/health").await.0, 200);
    }
}
