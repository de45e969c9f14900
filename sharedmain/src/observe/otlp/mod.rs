//! The export of metrics and spans to an OpenTelemetry collector by OTLP.

mod collector;
mod endpoint;
mod failure_log;
mod metrics;
mod pusher;
mod spans;

use std::{sync::Arc, time::Duration};

use opentelemetry::KeyValue;
use opentelemetry_sdk::{Resource, resource::EnvResourceDetector, trace::SdkTracerProvider};
use prometheus::Registry;
use reknit_injection::Shutdown;
use tokio::{runtime::Handle, time::timeout};

use self::{collector::Collector, pusher::Pusher, spans::Sink};
use super::traces::LateTracer;
use crate::{
    config::observability::{Metrics, ObservabilityConfig, Tracing},
    process::failure::Failure,
};

pub(crate) use self::endpoint::{Endpoint, Protocol};

/// The running exports of a process.
pub(crate) struct Exports {
    metrics: Option<Pusher>,
    spans: Option<SdkTracerProvider>,
}

impl Exports {
    /// Starts the exports of the configuration. After `shutdown`, failed exports are not retried.
    pub(crate) fn start(
        config: &ObservabilityConfig,
        resource: Resource,
        registry: Registry,
        tracer: &LateTracer,
        shutdown: Shutdown,
    ) -> Result<Self, Failure> {
        let metrics = match &config.metrics {
            Metrics::Push { endpoint, interval } => {
                let collector = Collector::new("metrics", endpoint.clone())?;
                Some(Pusher::start(collector, registry, &resource, *interval))
            }
            Metrics::None | Metrics::Prometheus { .. } => None,
        };
        let sink = match &config.tracing {
            Tracing::None => None,
            Tracing::Stdout => Some(Sink::Stdout),
            Tracing::Push(endpoint) => {
                let collector = Arc::new(Collector::new("traces", endpoint.clone())?);
                Some(Sink::Collector { collector, shutdown, runtime: Handle::current() })
            }
        };
        let spans = sink.map(|sink| spans::provider(sink, resource, config.sampling_rate));
        if let Some(provider) = &spans {
            tracer.enable(provider);
        }
        Ok(Self { metrics, spans })
    }

    /// Exports the last metrics and spans within the time limit.
    pub(crate) async fn flush(self, time_limit: Duration) {
        let metrics = async {
            if let Some(pusher) = self.metrics {
                pusher.push_last().await;
            }
        };
        let spans = async {
            let Some(provider) = self.spans else { return };
            let result = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(time_limit));
            if !matches!(result.await, Ok(Ok(()))) {
                tracing::warn!("dropped spans that were still queued");
            }
        };
        let _ = tokio::join!(timeout(time_limit, metrics), timeout(time_limit, spans));
    }
}

/// Returns the attributes of this process, by OpenTelemetry's semantic conventions. `OTEL_RESOURCE_ATTRIBUTES`
/// overrides them.
pub(crate) fn resource(
    component: &str,
    version: &str,
    namespace: Option<&str>,
    pod: Option<&str>,
) -> Resource {
    let attributes = [
        ("service.name", Some(component)),
        ("service.version", Some(version)),
        ("k8s.namespace.name", namespace),
        ("k8s.pod.name", pod),
        ("service.instance.id", pod),
    ];
    Resource::builder_empty()
        .with_attributes(attributes.into_iter().filter_map(|(k, v)| Some(KeyValue::new(k, v?.to_owned()))))
        .with_detector(Box::new(EnvResourceDetector::new()))
        .build()
}
