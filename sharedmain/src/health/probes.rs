//! What the kubelet asks: whether the process is alive, and whether it does its work.
use std::sync::Arc;

use axum::{Router, extract::State, http::StatusCode, routing::get};
use parking_lot::RwLock;

/// What stands in the way, a line each; nothing where all is well.
pub(crate) trait Vitals: Send + Sync {
    /// What is missing before the process does its work.
    fn unready(&self) -> Vec<String>;
    /// What only a restart might mend.
    fn unhealthy(&self) -> Vec<String>;
}

/// Answers `GET /readiness` and `GET /health` throughout the life of the process: 200, or 503 and the reasons.
#[derive(Clone)]
pub(crate) struct Probes(Arc<RwLock<Phase>>);

enum Phase {
    Starting(String),
    Running(Arc<dyn Vitals>),
    Stopping,
}

impl Probes {
    /// Alive, and not ready yet.
    pub(crate) fn starting(what: &str) -> Self {
        Self(Arc::new(RwLock::new(Phase::Starting(what.to_owned()))))
    }

    /// From now on the vitals decide, unless the process stops already.
    pub(crate) fn running(&self, vitals: Arc<dyn Vitals>) {
        let mut phase = self.0.write();
        if matches!(*phase, Phase::Starting(_)) {
            *phase = Phase::Running(vitals);
        }
    }

    /// From now on not ready, so that nothing new is sent here; alive until the end.
    pub(crate) fn stopping(&self) {
        *self.0.write() = Phase::Stopping;
    }

    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/readiness", get(async |State(probes): State<Self>| answer(probes.unready())))
            .route("/health", get(async |State(probes): State<Self>| answer(probes.unhealthy())))
            .with_state(self.clone())
    }

    fn unready(&self) -> Vec<String> {
        match &*self.0.read() {
            Phase::Starting(what) => vec![what.clone()],
            Phase::Running(vitals) => vitals.unready(),
            Phase::Stopping => vec!["shutting down".into()],
        }
    }

    fn unhealthy(&self) -> Vec<String> {
        match &*self.0.read() {
            Phase::Running(vitals) => vitals.unhealthy(),
            Phase::Starting(_) | Phase::Stopping => vec![],
        }
    }
}

fn answer(missing: Vec<String>) -> (StatusCode, String) {
    if missing.is_empty() {
        (StatusCode::OK, "ok\n".into())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n")
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    struct Sick;
    impl Vitals for Sick {
        fn unready(&self) -> Vec<String> {
            vec!["services: waiting".into(), "leadership: not known yet".into()]
        }
        fn unhealthy(&self) -> Vec<String> {
            vec!["a worker is stuck".into()]
        }
    }
    struct Well;
    impl Vitals for Well {
        fn unready(&self) -> Vec<String> {
            vec![]
        }
        fn unhealthy(&self) -> Vec<String> {
            vec![]
        }
    }

    async fn get(probes: &Probes, path: &str) -> (u16, String) {
        let answer = probes.router().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_starting_process_is_alive_and_says_what_it_waits_for() {
        let probes = Probes::starting("waiting for the API server");
        assert_eq!(get(&probes, "/readiness").await, (503, "waiting for the API server\n".into()));
        assert_eq!(get(&probes, "/health").await, (200, "ok\n".into()));
    }

    #[tokio::test]
    async fn a_running_process_is_as_well_as_its_vitals() {
        let probes = Probes::starting("starting");
        probes.running(Arc::new(Sick));
        let missing = "services: waiting\nleadership: not known yet\n".to_owned();
        assert_eq!(get(&probes, "/readiness").await, (503, missing));
        assert_eq!(get(&probes, "/health").await, (503, "a worker is stuck\n".into()));
        let probes = Probes::starting("starting");
        probes.running(Arc::new(Well));
        assert_eq!(get(&probes, "/readiness").await.0, 200);
    }

    #[tokio::test]
    async fn a_stopping_process_stays_so_and_is_alive() {
        let probes = Probes::starting("starting");
        probes.stopping();
        probes.running(Arc::new(Sick));
        assert_eq!(get(&probes, "/readiness").await, (503, "shutting down\n".into()));
        assert_eq!(get(&probes, "/health").await.0, 200);
    }
}
