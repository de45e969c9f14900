//! What is sent to an OpenTelemetry collector, by OTLP: the metrics that Prometheus would scrape, and spans of passes.

mod collector;
mod endpoint;
mod failure_log;
mod metrics;
mod pusher;
mod spans;

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::{Resource, resource::EnvResourceDetector, trace::SdkTracerProvider};
use prometheus::Registry;
use reknit_injection::Shutdown;

use self::{collector::Collector, pusher::Pusher};
use crate::{
    config::observability::{Metrics, ObservabilityConfig, Tracing},
    observe::traces::LateTracer,
    process::failure::Failure,
};

pub(crate) use self::endpoint::{Endpoint, Protocol};

/// What is sent while the process runs.
#[derive(Default)]
pub(crate) struct Exports {
    metrics: Option<Pusher>,
    spans: Option<SdkTracerProvider>,
}

impl Exports {
    /// Begins to send what the configuration asks for. From `stopping` on nothing is tried a second time.
    pub(crate) fn start(
        config: &ObservabilityConfig,
        resource: Resource,
        registry: Registry,
        tracer: &LateTracer,
        stopping: Shutdown,
    ) -> Result<Self, Failure> {
        let metrics = match &config.metrics {
            Metrics::Push { endpoint, every } => {
                let collector = Collector::new("metrics", endpoint.clone())?;
                Some(Pusher::start(collector, registry, &resource, *every))
            }
            Metrics::None | Metrics::Prometheus { .. } => None,
        };
        let spans = match &config.tracing {
            Tracing::None => None,
            Tracing::Stdout => Some(spans::to_stdout(resource, config.sampling_rate)),
            Tracing::Push(endpoint) => {
                let collector = Collector::new("traces", endpoint.clone())?;
                Some(spans::to_collector(collector, resource, config.sampling_rate, stopping))
            }
        };
        if let Some(provider) = &spans {
            tracer.turn_on(provider);
        }
        Ok(Self { metrics, spans })
    }

    /// Sends what there is now, for the last time, and gives up when the time is over.
    pub(crate) async fn flush(self, limit: Duration) {
        let metrics = async {
            if let Some(pusher) = self.metrics {
                pusher.push_last().await;
            }
        };
        let spans = async {
            let Some(provider) = self.spans else { return };
            let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(limit));
            if !matches!(ended.await, Ok(Ok(()))) {
                tracing::warn!("spans that waited to be sent were dropped");
            }
        };
        let _ = tokio::join!(tokio::time::timeout(limit, metrics), tokio::time::timeout(limit, spans));
    }
}

/// Who sends, as OpenTelemetry's semantic conventions name it. `OTEL_RESOURCE_ATTRIBUTES` adds to it and wins.
pub(crate) fn resource(
    component: &str,
    version: &str,
    namespace: Option<&str>,
    pod: Option<&str>,
) -> Resource {
    let named = [("k8s.namespace.name", namespace), ("k8s.pod.name", pod), ("service.instance.id", pod)];
    let known = named.into_iter().filter_map(|(name, value)| Some(KeyValue::new(name, value?.to_owned())));
    Resource::builder_empty()
        .with_attribute(KeyValue::new("service.name", component.to_owned()))
        .with_attribute(KeyValue::new("service.version", version.to_owned()))
        .with_attributes(known)
        .with_detector(Box::new(EnvResourceDetector::new()))
        .build()
}
