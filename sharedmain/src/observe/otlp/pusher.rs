//! Sends the metrics of the process again and again.
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
    metrics::{Span, now},
};

/// They are counted since the start, so what one request did not bring the next one does: nothing is kept.
pub(crate) struct Pusher {
    metrics: Arc<Pushed>,
    task: JoinHandle<()>,
}

struct Pushed {
    collector: Collector,
    registry: Registry,
    resource: Resource,
    since: u64,
}

impl Pusher {
    /// The first time after one interval.
    pub(crate) fn start(
        collector: Collector,
        registry: Registry,
        resource: &opentelemetry_sdk::Resource,
        every: Duration,
    ) -> Self {
        let attributes = ResourceAttributesWithSchema::from(resource).attributes.0;
        let resource = Resource { attributes, ..Resource::default() };
        let metrics = Arc::new(Pushed { collector, registry, resource, since: now() });
        let pushed = metrics.clone();
        let task = tokio::spawn(async move {
            let mut ticks = interval_at(Instant::now() + every, every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                pushed.push().await;
            }
        });
        Self { metrics, task }
    }

    /// What there is at the end.
    pub(crate) async fn push_last(self) {
        self.task.abort();
        self.metrics.push().await;
    }
}

impl Pushed {
    async fn push(&self) {
        // The collector's trouble has been told, and the next time is soon.
        let _ = self.collector.export(self.request()).await;
    }

    fn request(&self) -> ExportMetricsServiceRequest {
        let span = Span { since: self.since, until: now() };
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..InstrumentationScope::default()
        };
        let metrics = self.registry.gather().iter().map(|family| span.metric(family)).collect();
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }];
        let resource = Some(self.resource.clone());
        let one = ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() };
        ExportMetricsServiceRequest { resource_metrics: vec![one] }
    }
}
