//! What Prometheus scrapes.
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use prometheus::{Encoder, Registry, TextEncoder};

/// The registry of the process, with the process's own figures where the system offers them.
pub(crate) fn registry() -> Registry {
    let registry = Registry::new();
    #[cfg(target_os = "linux")]
    if let Err(error) =
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
    {
        tracing::warn!(%error, "no figures of the process itself");
    }
    registry
}

/// Answers `GET /metrics` with the text that Prometheus reads.
pub(crate) fn router(registry: Registry) -> Router {
    Router::new().route("/metrics", get(scrape)).with_state(registry)
}

async fn scrape(State(registry): State<Registry>) -> impl IntoResponse {
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    match encoder.encode(&registry.gather(), &mut text) {
        Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, encoder.format_type().to_owned())], text),
        Err(e) => {
            let plain = [(header::CONTENT_TYPE, "text/plain".to_owned())];
            (StatusCode::INTERNAL_SERVER_ERROR, plain, e.to_string().into_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn metrics_are_prometheus_text() {
        let registry = registry();
        let counter = prometheus::IntCounter::new("passes_total", "Passes.").unwrap();
        registry.register(Box::new(counter.clone())).unwrap();
        counter.inc();
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let answer = router(registry).oneshot(request).await.unwrap();
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/plain; version=0.0.4");
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("# HELP passes_total Passes.\n# TYPE passes_total counter\npasses_total 1\n"));
        #[cfg(target_os = "linux")]
        assert!(text.contains("process_resident_memory_bytes "), "{text}");
    }
}
