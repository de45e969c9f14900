//! The periodic export of the metrics of the process.
use std::{sync::Arc, time::Duration};

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
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    collector::Collector,
    metrics::{Period, now},
};

/// Pushes metrics at an interval. All values are cumulative, so a failed push loses nothing.
pub(super) struct Pusher {
    metrics: Arc<Pushed>,
    task: JoinHandle<()>,
}

struct Pushed {
    collector: Collector,
    registry: Registry,
    resource: Resource,
    start: u64,
}

impl Pusher {
    /// Starts pushing. The first push is after one interval.
    pub(super) fn start(
        collector: Collector,
        registry: Registry,
        resource: &opentelemetry_sdk::Resource,
        interval: Duration,
    ) -> Self {
        let attributes = ResourceAttributesWithSchema::from(resource).attributes.0;
        let resource = Resource { attributes, ..Resource::default() };
        let metrics = Arc::new(Pushed { collector, registry, resource, start: now() });
        let pushed = metrics.clone();
        let task = tokio::spawn(async move {
            let mut ticks = interval_at(Instant::now() + interval, interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                pushed.push().await;
            }
        });
        Self { metrics, task }
    }

    /// Stops, and pushes the metrics for the last time.
    pub(super) async fn push_last(self) {
        self.task.abort();
        self.metrics.push().await;
    }
}

impl Pushed {
    async fn push(&self) {
        // The collector has logged an error, and the next push is soon.
        let _ = self.collector.export(self.request()).await;
    }

    fn request(&self) -> ExportMetricsServiceRequest {
        let period = Period { start: self.start, end: now() };
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..InstrumentationScope::default()
        };
        let metrics = self.registry.gather().iter().map(|family| period.metric(family)).collect();
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }];
        let resource = Some(self.resource.clone());
        let resource_metrics =
            vec![ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() }];
        ExportMetricsServiceRequest { resource_metrics }
    }
}
