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
    if let Err(error) = registry.register(Box::new(process::Process::default())) {
        tracing::warn!(%error, "failed to register the metrics of the process");
    }
    registry
}

/// The metrics of the process.
#[cfg(target_os = "linux")]
mod process {
    use prometheus::{
        core::{Collector, Desc},
        process_collector::ProcessCollector,
        proto::{Counter, MetricFamily},
    };

    /// A `ProcessCollector` that counts fractions of CPU seconds, as client_golang's does.
    pub(super) struct Process(ProcessCollector);

    impl Default for Process {
        fn default() -> Self {
            Self(ProcessCollector::for_self())
        }
    }

    impl Collector for Process {
        fn desc(&self) -> Vec<&Desc> {
            self.0.desc()
        }

        fn collect(&self) -> Vec<MetricFamily> {
            let mut families = self.0.collect();
            let cpu = families.iter_mut().find(|family| family.name() == "process_cpu_seconds_total");
            if let (Some(cpu), Some(seconds)) = (cpu, cpu_seconds()) {
                let mut counter = Counter::default();
                counter.set_value(seconds);
                cpu.mut_metric().iter_mut().for_each(|metric| metric.set_counter(counter.clone()));
            }
            families
        }
    }

    fn cpu_seconds() -> Option<f64> {
        let stat = procfs::process::Process::myself().and_then(|process| process.stat()).ok()?;
        Some((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64)
    }
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

    #[cfg(target_os = "linux")]
    #[test]
    fn fractions_of_cpu_seconds_count() {
        let registry = new_registry();
        let seconds = || {
            let families = registry.gather();
            let cpu = families.iter().find(|family| family.name() == "process_cpu_seconds_total").unwrap();
            cpu.get_metric()[0].get_counter().get_value()
        };
        while seconds().fract() == 0.0 {
            std::hint::spin_loop();
        }
    }
}
