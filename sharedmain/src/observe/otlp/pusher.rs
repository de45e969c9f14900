//! The periodic export of the metrics of the process.
use std::time::Duration;

use opentelemetry_proto::{
    tonic::{
        collector::metrics::v1::ExportMetricsServiceRequest,
        common::v1::InstrumentationScope,
        metrics::v1::{ResourceMetrics, ScopeMetrics},
        resource::v1::Resource,
    },
    transform::common::tonic::ResourceAttributesWithSchema,
};
use prometheus::Registry;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use super::{
    collector::Collector,
    metrics::{Period, now},
};

/// Pushes metrics at an interval. All values are cumulative, so a failed push loses nothing.
pub(super) struct Pusher {
    /// Ends the task after a last push.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Pusher {
    /// Starts the task. The first push follows after one interval.
    pub(super) fn start(
        collector: Collector,
        registry: Registry,
        resource: &opentelemetry_sdk::Resource,
        interval: Duration,
    ) -> Self {
        let attributes = ResourceAttributesWithSchema::from(resource).attributes.0;
        let resource = Resource { attributes, ..Resource::default() };
        let start = now();
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut is_last = false;
            while !is_last {
                is_last = timeout(interval, &mut stopped).await.is_ok();
                let (registry, resource) = (registry.clone(), resource.clone());
                // The program's own collectors may block, and electors share the thread. One that panics costs a push.
                let gather = move || request(&registry, resource, Period { start, end: now() });
                if let Ok(request) = tokio::task::spawn_blocking(gather).await {
                    // `export` logs a failure, and the next push contains all values again.
                    let _ = collector.export(request).await;
                }
            }
        });
        Self { stop, task }
    }

    /// Pushes the metrics for the last time.
    pub(super) async fn push_last(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

fn request(registry: &Registry, resource: Resource, period: Period) -> ExportMetricsServiceRequest {
    let scope = InstrumentationScope {
        name: env!("CARGO_PKG_NAME").into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    let metrics = registry.gather().iter().map(|family| period.convert(family)).collect();
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }];
    let resource_metrics =
        vec![ResourceMetrics { resource: Some(resource), scope_metrics, ..ResourceMetrics::default() }];
    ExportMetricsServiceRequest { resource_metrics }
}
