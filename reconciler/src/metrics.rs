//! The metrics of controllers: of their queues under client-go's names, of their passes and events under `reknit_*`.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::{
    Counter, CounterVec, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntGauge, IntGaugeVec, Opts,
    Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use reknit_injection::{Context, Inject, internal::register_metric};

/// The metrics of all controllers of one process, in its registry.
#[derive(Clone)]
pub(crate) struct Metrics {
    depth: IntGaugeVec,
    adds: CounterVec,
    queue_duration: HistogramVec,
    work_duration: HistogramVec,
    retries: CounterVec,
    running: RunningTimes,
    causes: CounterVec,
    passes: CounterVec,
    pass_time: HistogramVec,
    status_writes: CounterVec,
    dropped_status_fields: CounterVec,
    pub(crate) events_dropped: Counter,
}

/// The metrics of one queue.
pub(crate) struct QueueMetrics {
    pub(crate) depth: IntGauge,
    pub(crate) adds: Counter,
    pub(crate) queue_duration: Histogram,
    pub(crate) work_duration: Histogram,
    pub(crate) retries: Counter,
    name: String,
    causes: CounterVec,
}

/// The metrics of the passes of one controller.
#[derive(Clone)]
pub(crate) struct PassMetrics {
    metrics: Metrics,
    controller: Arc<str>,
}

/// A queue whose running passes are measured at each scrape.
pub(crate) trait RunningPasses: Send + Sync {
    fn ages(&self) -> Vec<Duration>;
}

impl Inject for Metrics {
    fn inject(cx: &Context) -> Self {
        Self::new(cx.metrics())
    }
}

impl Metrics {
    fn new(registry: &Registry) -> Self {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            register_metric(registry, CounterVec::new(Opts::new(name, help), labels))
        };
        // From ten nanoseconds to half an hour, as in client-go and controller-runtime.
        let buckets: Vec<f64> =
            std::iter::successors(Some(1e-8), |bucket| Some(bucket * 10.0)).take(12).collect();
        let histogram = |name: &str, help: &str, label: &str| {
            let opts = HistogramOpts::new(name, help).buckets(buckets.clone());
            register_metric(registry, HistogramVec::new(opts, &[label]))
        };
        let depth = Opts::new("workqueue_depth", "Current depth of workqueue");
        let events_dropped = Counter::new(
            "reknit_events_dropped_total",
            "Events that were not recorded: too many waited, or the API server refused them",
        );
        Self {
            depth: register_metric(registry, IntGaugeVec::new(depth, &["name"])),
            adds: counter("workqueue_adds_total", "Total number of adds handled by workqueue", &["name"]),
            queue_duration: histogram(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested",
                "name",
            ),
            work_duration: histogram(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes",
                "name",
            ),
            retries: counter(
                "workqueue_retries_total",
                "Total number of retries handled by workqueue",
                &["name"],
            ),
            running: register_metric(registry, RunningTimes::new()),
            causes: counter(
                "reknit_reconcile_causes_total",
                "Number of causes of passes: object, tracked, owned or watched objects, kind, config, start, resync, leadership, after, retry or queue",
                &["controller", "cause", "source"],
            ),
            passes: counter(
                "reknit_reconcile_total",
                "Number of passes by result: success, requeue, skip, waiting, error, conflict, panic, deadline or lost",
                &["controller", "result"],
            ),
            pass_time: histogram(
                "reknit_reconcile_time_seconds",
                "How long in seconds a pass takes, including its writes",
                "controller",
            ),
            status_writes: counter(
                "reknit_status_writes_total",
                "Number of status writes by result: success or error",
                &["controller", "result"],
            ),
            dropped_status_fields: counter(
                "reknit_status_fields_dropped_total",
                "Number of status writes of which the API server did not store all fields",
                &["controller"],
            ),
            events_dropped: register_metric(registry, events_dropped),
        }
    }

    pub(crate) fn queue(&self, name: &str, queue: Weak<dyn RunningPasses>) -> QueueMetrics {
        self.running.queues.lock().push((name.into(), queue));
        QueueMetrics {
            depth: self.depth.with_label_values(&[name]),
            adds: self.adds.with_label_values(&[name]),
            queue_duration: self.queue_duration.with_label_values(&[name]),
            work_duration: self.work_duration.with_label_values(&[name]),
            retries: self.retries.with_label_values(&[name]),
            name: name.into(),
            causes: self.causes.clone(),
        }
    }

    pub(crate) fn passes(&self, controller: &str) -> PassMetrics {
        PassMetrics { metrics: self.clone(), controller: controller.into() }
    }
}

impl QueueMetrics {
    /// Counts a cause of a pass by its labels `cause` and `source`.
    pub(crate) fn count_cause(&self, [cause, source]: [&str; 2]) {
        self.causes.with_label_values(&[&*self.name, cause, source]).inc();
    }
}

impl PassMetrics {
    pub(crate) fn record_pass(&self, result: &str, took: Duration) {
        self.metrics.passes.with_label_values(&[&*self.controller, result]).inc();
        self.metrics.pass_time.with_label_values(&[&*self.controller]).observe(took.as_secs_f64());
    }

    pub(crate) fn record_status_write(&self, succeeded: bool) {
        let result = if succeeded { "success" } else { "error" };
        self.metrics.status_writes.with_label_values(&[&*self.controller, result]).inc();
    }

    pub(crate) fn record_dropped_status_fields(&self) {
        self.metrics.dropped_status_fields.with_label_values(&[&*self.controller]).inc();
    }
}

type NamedQueue = (String, Weak<dyn RunningPasses>);

/// Collects the two gauges that grow while a key is processed.
#[derive(Clone)]
struct RunningTimes {
    queues: Arc<Mutex<Vec<NamedQueue>>>,
    unfinished: GaugeVec,
    longest: GaugeVec,
}

impl RunningTimes {
    fn new() -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &["name"]);
        Ok(Self {
            queues: Arc::default(),
            unfinished: gauge(
                "workqueue_unfinished_work_seconds",
                "How many seconds of work has been done that is in progress and hasn't been observed by work_duration",
            )?,
            longest: gauge(
                "workqueue_longest_running_processor_seconds",
                "How many seconds has the longest running processor for workqueue been running",
            )?,
        })
    }
}

impl Collector for RunningTimes {
    fn desc(&self) -> Vec<&Desc> {
        [self.unfinished.desc(), self.longest.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.queues.lock().retain(|(name, queue)| {
            let Some(queue) = queue.upgrade() else { return false };
            let ages = queue.ages();
            let unfinished: Duration = ages.iter().sum();
            let longest = ages.into_iter().max().unwrap_or_default();
            self.unfinished.with_label_values(&[name]).set(unfinished.as_secs_f64());
            self.longest.with_label_values(&[name]).set(longest.as_secs_f64());
            true
        });
        [self.unfinished.collect(), self.longest.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue with passes that have been running for two and three seconds.
    struct TwoRunningPasses;
    impl RunningPasses for TwoRunningPasses {
        fn ages(&self) -> Vec<Duration> {
            vec![Duration::from_secs(2), Duration::from_secs(3)]
        }
    }

    #[test]
    fn every_metric_has_a_valid_name() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry);
        let queue: Arc<dyn RunningPasses> = Arc::new(TwoRunningPasses);
        metrics.queue("a", Arc::downgrade(&queue)).adds.inc();
        metrics.passes("a").record_pass("success", Duration::from_millis(3));
        let names: Vec<_> = registry.gather().iter().map(|family| family.name().to_owned()).collect();
        let expected =
            ["reknit_reconcile_total", "workqueue_adds_total", "workqueue_unfinished_work_seconds"];
        assert!(expected.iter().all(|expected| names.iter().any(|name| name == expected)), "{names:?}");
        let gauge = |name: &str| {
            let families = registry.gather();
            let family = families.iter().find(|family| family.name() == name).unwrap();
            family.get_metric()[0].get_gauge().get_value()
        };
        assert_eq!(gauge("workqueue_unfinished_work_seconds"), 5.0);
        assert_eq!(gauge("workqueue_longest_running_processor_seconds"), 3.0);
    }

    #[test]
    fn only_the_first_of_two_contexts_on_one_registry_is_exported() {
        let registry = Registry::new();
        let [first, second] = [(); 2].map(|()| Metrics::new(&registry));
        first.passes("a").record_pass("success", Duration::ZERO);
        second.passes("b").record_pass("success", Duration::ZERO);
        let families = registry.gather();
        let families = families.iter().filter(|family| family.name() == "reknit_reconcile_total");
        let metrics: Vec<_> = families.flat_map(MetricFamily::get_metric).collect();
        let controllers: Vec<_> = metrics.iter().map(|metric| metric.get_label()[0].value()).collect();
        assert_eq!(controllers, ["a"]);
    }
}
