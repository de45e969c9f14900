//! The export of sampled spans.
use std::{fmt, io::Write, sync::Arc, time::Duration};

use opentelemetry_proto::{
    tonic::collector::trace::v1::ExportTraceServiceRequest,
    transform::{
        common::tonic::ResourceAttributesWithSchema, trace::tonic::group_spans_by_resource_and_scope,
    },
};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter},
};
use reknit_injection::Shutdown;
use tokio::{runtime::Handle, time::Instant};

use super::collector::{Collector, ExportError};

/// The time for which a batch is retried, as in OpenTelemetry's own exporters.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Exports spans in batches to the sink. The queue holds 2,048 spans (`OTEL_BSP_MAX_QUEUE_SIZE`); spans beyond that are
/// dropped.
pub(super) fn provider(sink: Sink, resource: Resource, rate: f64) -> SdkTracerProvider {
    let exporter = Exporter { sink, resource: ResourceAttributesWithSchema::from(&resource) };
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(rate)));
    let builder = SdkTracerProvider::builder().with_sampler(sampler).with_resource(resource);
    builder.with_batch_exporter(exporter).build()
}

struct Exporter {
    sink: Sink,
    resource: ResourceAttributesWithSchema,
}

/// The destination of spans.
pub(super) enum Sink {
    /// Standard output, with a line of OTLP's JSON for each batch.
    Stdout,
    /// A collector. OpenTelemetry's thread for exports has no tokio runtime, so batches are sent on the runtime of
    /// the process.
    Collector { collector: Arc<Collector>, shutdown: Shutdown, runtime: Handle },
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let request = ExportTraceServiceRequest { resource_spans };
        let result = match &self.sink {
            Sink::Stdout => print(&request),
            Sink::Collector { collector, shutdown, runtime } => {
                let sending = runtime.spawn(send(collector.clone(), request, shutdown.clone()));
                sending.await.map_err(|e| e.to_string()).and_then(|sent| sent.map_err(|e| e.to_string()))
            }
        };
        result.map_err(OTelSdkError::InternalFailure)
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

fn print(request: &ExportTraceServiceRequest) -> Result<(), String> {
    let line = serde_json::to_string(request).map_err(|e| e.to_string())? + "\n";
    std::io::stdout().lock().write_all(line.as_bytes()).map_err(|e| e.to_string())
}

/// Sends a batch, and retries transient errors for a minute. The shutdown ends a backoff: one more attempt follows at
/// once.
async fn send(
    collector: Arc<Collector>,
    batch: ExportTraceServiceRequest,
    shutdown: Shutdown,
) -> Result<(), ExportError> {
    let (start, mut backoff) = (Instant::now(), FIRST_BACKOFF);
    loop {
        let is_last = shutdown.is_down() || start.elapsed() >= RETRY_TIMEOUT;
        match collector.export(batch.clone()).await {
            Err(error) if error.is_transient && !is_last => {}
            result => return result,
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(backoff) => {}
            () = shutdown.wait() => {}
        }
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}
