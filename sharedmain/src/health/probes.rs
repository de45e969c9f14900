//! The probes of the kubelet: readiness and health of the process.
use std::sync::Arc;

use axum::{Router, extract::State, http::StatusCode, routing::get};
use parking_lot::RwLock;

/// Checks of a running process. Each method returns the reasons why the check fails, or an empty list.
pub(crate) trait HealthCheck: Send + Sync {
    /// The reasons why the process cannot do its work yet.
    fn unready(&self) -> Vec<String>;
    /// The problems that a restart may solve.
    fn unhealthy(&self) -> Vec<String>;
}

/// Answers `GET /readiness` and `GET /health` during the whole life of the process: with 200, or with 503 and the
/// reasons.
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
        Router::new()
            .route("/readiness", get(async |State(probes): State<Self>| respond(&probes.unready())))
            .route("/health", get(async |State(probes): State<Self>| respond(&probes.unhealthy())))
            .with_state(self.clone())
    }

    fn unready(&self) -> Vec<String> {
        match &*self.0.read() {
            Phase::Starting(why) => vec![why.clone()],
            Phase::Running(check) => check.unready(),
            Phase::Stopping => vec!["shutting down".into()],
        }
    }

    fn unhealthy(&self) -> Vec<String> {
        match &*self.0.read() {
            Phase::Running(check) => check.unhealthy(),
            Phase::Starting(_) | Phase::Stopping => vec![],
        }
    }
}

fn respond(reasons: &[String]) -> (StatusCode, String) {
    match reasons {
        [] => (StatusCode::OK, "ok\n".into()),
        reasons => (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n"),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    struct Failing;
    impl HealthCheck for Failing {
        fn unready(&self) -> Vec<String> {
            vec!["services: waiting".into(), "leadership: not known yet".into()]
        }
        fn unhealthy(&self) -> Vec<String> {
            vec!["a worker is stuck".into()]
        }
    }
    struct Passing;
    impl HealthCheck for Passing {
        fn unready(&self) -> Vec<String> {
            vec![]
        }
        fn unhealthy(&self) -> Vec<String> {
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
        assert_eq!(get(&probes, "/readiness").await, (503, "waiting for the API server\n".into()));
        assert_eq!(get(&probes, "/health").await, (200, "ok\n".into()));
    }

    #[tokio::test]
    async fn a_running_process_reports_its_checks() {
        let probes = Probes::starting("starting");
        probes.set_running(Arc::new(Failing));
        let reasons = "services: waiting\nleadership: not known yet\n".to_owned();
        assert_eq!(get(&probes, "/readiness").await, (503, reasons));
        assert_eq!(get(&probes, "/health").await, (503, "a worker is stuck\n".into()));
        let probes = Probes::starting("starting");
        probes.set_running(Arc::new(Passing));
        assert_eq!(get(&probes, "/readiness").await.0, 200);
    }

    #[tokio::test]
    async fn a_stopping_process_stays_unready_and_healthy() {
        let probes = Probes::starting("starting");
        probes.set_stopping();
        probes.set_running(Arc::new(Failing));
        assert_eq!(get(&probes, "/readiness").await, (503, "shutting down\n".into()));
        assert_eq!(get(&probes, "/health").await.0, 200);
    }
}
