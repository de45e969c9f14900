//! The debug port: CPU profiles of the running process, under the paths of Go's `net/http/pprof`, and the dump of passes.

#[cfg(all(unix, feature = "profiling"))]
mod cpu;
#[cfg(all(unix, feature = "profiling"))]
mod profile;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Query, Request, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};

/// The default of the query parameter `seconds`, as in Go.
const DEFAULT_SECONDS: f64 = 30.0;
/// The maximum of the query parameter `seconds`.
const MAX_SECONDS: f64 = 600.0;

const INDEX: &str = "/debug/passes  running passes, with what each waits for, and paused keys\n\
                     /debug/pprof/profile?seconds=30  CPU profile\n/debug/pprof/cmdline  command line\n";
const WITHOUT_FEATURE: &str = "the program is built without the feature profiling of reknit";
const NOT_SUPPORTED: &str = "profile not supported, only /debug/pprof/profile\n";

/// The switch of `runtime-profiling`, which may change at any time.
#[derive(Clone, Default)]
pub(crate) struct Profiling(Arc<AtomicBool>);

/// A profile that could not be taken.
struct ProfileError {
    status: StatusCode,
    why: String,
}

#[derive(serde::Deserialize)]
struct Parameters {
    seconds: Option<f64>,
}

impl Profiling {
    pub(crate) fn set_enabled(&self, enabled: bool) {
        if self.0.swap(enabled, Ordering::Relaxed) != enabled {
            tracing::info!("profiling is {}", if enabled { "enabled" } else { "disabled" });
            if enabled && !cfg!(feature = "profiling") {
                tracing::warn!("no CPU profiles are served: {WITHOUT_FEATURE}");
            }
        }
    }

    /// Serves the profiles and the dump of passes. Answers 404 to every request while profiling is disabled.
    pub(crate) fn router(&self, passes: Router) -> Router {
        Router::new()
            .route("/debug/", get(INDEX))
            .route("/debug/pprof/", get(INDEX))
            .route("/debug/pprof/profile", get(profile))
            .route("/debug/pprof/cmdline", get(async || command_line()))
            .route("/debug/pprof/{other}", get((StatusCode::NOT_IMPLEMENTED, NOT_SUPPORTED)))
            .merge(passes)
            .layer(from_fn_with_state(self.clone(), only_while_enabled))
    }
}

async fn only_while_enabled(State(profiling): State<Profiling>, request: Request, next: Next) -> Response {
    if profiling.0.load(Ordering::Relaxed) {
        return next.run(request).await;
    }
    let why = "profiling is not enabled: set runtime-profiling to enabled in config-observability\n";
    (StatusCode::NOT_FOUND, why).into_response()
}

async fn profile(Query(parameters): Query<Parameters>) -> Response {
    let seconds = parameters.seconds.filter(|seconds| *seconds > 0.0).unwrap_or(DEFAULT_SECONDS);
    if seconds > MAX_SECONDS {
        return (StatusCode::BAD_REQUEST, format!("seconds is at most {MAX_SECONDS}\n")).into_response();
    }
    match take_profile(Duration::from_secs_f64(seconds)).await {
        Ok(profile) => {
            let content_type = (header::CONTENT_TYPE, "application/octet-stream");
            let disposition = (header::CONTENT_DISPOSITION, "attachment; filename=\"profile\"");
            ([content_type, disposition], profile).into_response()
        }
        Err(ProfileError { status, why }) => (status, why + "\n").into_response(),
    }
}

#[cfg(all(unix, feature = "profiling"))]
use cpu::take_profile;

#[cfg(not(all(unix, feature = "profiling")))]
async fn take_profile(_: Duration) -> Result<Vec<u8>, ProfileError> {
    let why = match cfg!(feature = "profiling") {
        true => "CPU profiles are not supported on this system",
        false => WITHOUT_FEATURE,
    };
    Err(ProfileError { status: StatusCode::NOT_IMPLEMENTED, why: why.into() })
}

/// Returns the arguments of the process, separated by NUL, as in Go.
fn command_line() -> String {
    std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>().join("\0")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;

    async fn get(profiling: &Profiling, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = profiling.router(Router::new()).oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn nothing_is_served_while_profiling_is_disabled() {
        let profiling = Profiling::default();
        for path in ["/debug/pprof/", "/debug/pprof/profile?seconds=1", "/debug/pprof/heap"] {
            let (status, why) = get(&profiling, path).await;
            assert_eq!(status, 404, "{path}");
            assert!(why.starts_with("profiling is not enabled"), "{why}");
        }
    }

    #[tokio::test]
    async fn unsupported_profiles_and_parameters_are_errors() {
        let profiling = Profiling::default();
        profiling.set_enabled(true);
        assert_eq!(get(&profiling, "/debug/pprof/").await, (200, INDEX.into()));
        assert_eq!(get(&profiling, "/debug/pprof/heap").await, (501, NOT_SUPPORTED.into()));
        assert_eq!(get(&profiling, "/debug/pprof/profile?seconds=3600").await.0, 400);
        assert_eq!(get(&profiling, "/debug/pprof/profile?seconds=soon").await.0, 400);
        assert!(get(&profiling, "/debug/pprof/cmdline").await.1.contains("reknit_sharedmain"));
        profiling.set_enabled(false);
        assert_eq!(get(&profiling, "/debug/pprof/").await.0, 404);
    }
}
