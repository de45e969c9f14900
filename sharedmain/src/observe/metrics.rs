//! The metrics of the process for Prometheus.
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};

/// Creates the registry of the process, with metrics of the process itself on Linux.
pub(crate) fn new_registry() -> Registry {
    let registry = Registry::new();
    #[cfg(target_os = "linux")]
    if let Err(error) =
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
    {
        tracing::warn!(%error, "failed to register the metrics of the process");
    }
    registry
}

/// Answers `GET /metrics` in the text format of Prometheus.
pub(crate) fn router(registry: Registry) -> Router {
    Router::new().route("/metrics", get(scrape)).with_state(registry)
}

async fn scrape(State(registry): State<Registry>) -> impl IntoResponse {
    // The program's own collectors may block, and electors share the thread.
    let encode = move || TextEncoder::new().encode_to_string(&registry.gather()).map_err(|e| e.to_string());
    let text = tokio::task::spawn_blocking(encode).await.map_err(|e| e.to_string()).flatten();
    text.map(|text| ([(header::CONTENT_TYPE, TEXT_FORMAT)], text))
        .map_err(|e| (StatusCode::INTERNAL_SERVER_ERROR, e))
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn metrics_are_in_the_text_format_of_prometheus() {
        let registry = new_registry();
        let counter = prometheus::IntCounter::new("passes_total", "Passes.").unwrap();
        registry.register(Box::new(counter.clone())).unwrap();
        counter.inc();
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let response = router(registry).oneshot(request).await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; version=0.0.4");
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("# HELP passes_total Passes.\n# TYPE passes_total counter\npasses_total 1\n"));
        #[cfg(target_os = "linux")]
        assert!(text.contains("process_resident_memory_bytes "), "{text}");
    }
}
