//! Sends the spans that are sampled.
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

use super::collector::{Collector, Refused};

/// What a collector that restarts does not take is sent again for so long, as OpenTelemetry's own exporters do it.
const PATIENCE: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Spans in batches to a collector. What waits is bounded: 2,048 spans (`OTEL_BSP_MAX_QUEUE_SIZE`), those beyond are
/// dropped.
pub(crate) fn to_collector(
    collector: Collector,
    resource: Resource,
    rate: f64,
    stopping: Shutdown,
) -> SdkTracerProvider {
    let sender = Sender { collector: Arc::new(collector), stopping, runtime: Handle::current() };
    provider(Exporter { to: sender, resource: attributes(&resource) }, resource, rate)
}

/// Spans in batches on standard output, each batch a line of OTLP's JSON.
pub(crate) fn to_stdout(resource: Resource, rate: f64) -> SdkTracerProvider {
    provider(Exporter { to: Stdout, resource: attributes(&resource) }, resource, rate)
}

fn provider<T: Take>(exporter: Exporter<T>, resource: Resource, rate: f64) -> SdkTracerProvider {
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(rate)));
    let builder = SdkTracerProvider::builder().with_sampler(sampler).with_resource(resource);
    builder.with_batch_exporter(exporter).build()
}

fn attributes(resource: &Resource) -> ResourceAttributesWithSchema {
    ResourceAttributesWithSchema::from(resource)
}

/// Where batches go.
trait Take: Send + Sync + 'static {
    fn take(&self, batch: ExportTraceServiceRequest) -> impl Future<Output = Result<(), String>> + Send;
}

struct Exporter<T> {
    to: T,
    resource: ResourceAttributesWithSchema,
}

impl<T: Take> SpanExporter for Exporter<T> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let taken = self.to.take(ExportTraceServiceRequest { resource_spans }).await;
        taken.map_err(OTelSdkError::InternalFailure)
    }
}

impl<T> fmt::Debug for Exporter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

struct Stdout;

impl Take for Stdout {
    async fn take(&self, batch: ExportTraceServiceRequest) -> Result<(), String> {
        let line = serde_json::to_string(&batch).map_err(|e| e.to_string())? + "\n";
        std::io::stdout().lock().write_all(line.as_bytes()).map_err(|e| e.to_string())
    }
}

/// Batches are made on a thread without a runtime, and sent on that of the process.
struct Sender {
    collector: Arc<Collector>,
    stopping: Shutdown,
    runtime: Handle,
}

impl Take for Sender {
    async fn take(&self, batch: ExportTraceServiceRequest) -> Result<(), String> {
        let sent = persist(self.collector.clone(), batch, self.stopping.clone());
        match self.runtime.spawn(sent).await {
            Ok(taken) => taken.map_err(|refused| refused.to_string()),
            Err(ended) => Err(ended.to_string()),
        }
    }
}

/// Tries again while that may help. Once the process ends there is one more try and no pause.
async fn persist(
    collector: Arc<Collector>,
    batch: ExportTraceServiceRequest,
    stopping: Shutdown,
) -> Result<(), Refused> {
    let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        let last = stopping.is_down() || began.elapsed() >= PATIENCE;
        match collector.export(batch.clone()).await {
            Err(refused) if refused.may_pass && !last => {}
            taken => return taken,
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stopping.wait() => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
