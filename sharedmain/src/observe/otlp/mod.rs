//! The export of metrics and spans to an OpenTelemetry collector by OTLP.

mod collector;
mod metrics;
mod pusher;
mod spans;
mod tracer;

use std::{sync::Arc, time::Duration};

use opentelemetry::KeyValue;
use opentelemetry_sdk::{Resource, resource::EnvResourceDetector, trace::SdkTracerProvider};
use prometheus::Registry;
use reknit_injection::Shutdown;
use tokio::{runtime::Handle, time::timeout};

use self::{collector::Collector, pusher::Pusher, spans::Sink};
use crate::{
    config::observability::{Metrics, ObservabilityConfig, Tracing},
    process::failure::Failure,
};

pub(crate) use self::tracer::LateTracer;

/// The running exports of a process.
pub(crate) struct Exports {
    metrics: Option<Pusher>,
    spans: Option<SdkTracerProvider>,
}

impl Exports {
    /// Exports nothing.
    pub(crate) fn none() -> Self {
        Self { metrics: None, spans: None }
    }

    /// Starts the exports of the configuration. After `shutdown`, failed exports are not retried.
    pub(crate) fn start(
        config: &ObservabilityConfig,
        attributes: &[(&'static str, Option<&str>)],
        registry: Registry,
        tracer: &LateTracer,
        shutdown: Shutdown,
    ) -> Result<Self, Failure> {
        let resource = resource(attributes);
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

/// Returns the attributes that are set. `OTEL_RESOURCE_ATTRIBUTES` overrides them.
fn resource(attributes: &[(&'static str, Option<&str>)]) -> Resource {
    let set = attributes.iter().filter_map(|(key, value)| Some(KeyValue::new(*key, (*value)?.to_owned())));
    Resource::builder_empty().with_attributes(set).with_detector(Box::new(EnvResourceDetector::new())).build()
}
