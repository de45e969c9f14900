//! What a controller counts: its queue under client-go's names, its passes under its own.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::{
    Counter, CounterVec, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntGauge, IntGaugeVec, Opts,
    Registry,
    core::{Collector, Desc},
    exponential_buckets,
    proto::MetricFamily,
};
use reknit_injection::{Context, Inject};

/// The metrics of all controllers of one process, in its registry.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Families>);

struct Families {
    depth: IntGaugeVec,
    adds: CounterVec,
    queue_duration: HistogramVec,
    work_duration: HistogramVec,
    retries: CounterVec,
    working: Working,
    passes: CounterVec,
    pass_time: HistogramVec,
    status_writes: CounterVec,
    events_dropped: Counter,
}

/// What one queue counts.
pub(crate) struct QueueMetrics {
    pub(crate) depth: IntGauge,
    pub(crate) adds: Counter,
    pub(crate) queue_duration: Histogram,
    pub(crate) work_duration: Histogram,
    pub(crate) retries: Counter,
}

/// What the passes of one controller count.
#[derive(Clone)]
pub(crate) struct PassMetrics {
    passes: CounterVec,
    time: Histogram,
    status_writes: CounterVec,
    controller: Arc<str>,
}

/// How long the claimed keys of a queue have been worked on, asked at each scrape.
pub(crate) trait RunningPasses: Send + Sync {
    fn ages(&self) -> Vec<Duration>;
}

impl Inject for Metrics {
    fn inject(cx: &Context) -> Self {
        let families = Families::new();
        families.register(cx.metrics());
        Self(Arc::new(families))
    }
}

impl Metrics {
    pub(crate) fn queue(&self, name: &str, queue: Weak<dyn RunningPasses>) -> QueueMetrics {
        let families = &self.0;
        families.working.0.queues.lock().push((name.into(), queue));
        QueueMetrics {
            depth: families.depth.with_label_values(&[name]),
            adds: families.adds.with_label_values(&[name]),
            queue_duration: families.queue_duration.with_label_values(&[name]),
            work_duration: families.work_duration.with_label_values(&[name]),
            retries: families.retries.with_label_values(&[name]),
        }
    }

    pub(crate) fn passes(&self, controller: &str) -> PassMetrics {
        PassMetrics {
            passes: self.0.passes.clone(),
            time: self.0.pass_time.with_label_values(&[controller]),
            status_writes: self.0.status_writes.clone(),
            controller: controller.into(),
        }
    }

    pub(crate) fn events_dropped(&self) -> Counter {
        self.0.events_dropped.clone()
    }
}

impl PassMetrics {
    /// One pass that ended so, after so long.
    pub(crate) fn ended(&self, result: &str, after: Duration) {
        self.passes.with_label_values(&[&*self.controller, result]).inc();
        self.time.observe(after.as_secs_f64());
    }

    /// One attempt to write a status.
    pub(crate) fn status_write(&self, succeeded: bool) {
        let result = if succeeded { "success" } else { "error" };
        self.status_writes.with_label_values(&[&*self.controller, result]).inc();
    }
}

impl Families {
    fn new() -> Self {
        Self {
            depth: made(IntGaugeVec::new(
                Opts::new("workqueue_depth", "Current depth of workqueue"),
                &["name"],
            )),
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
            working: Working::new(),
            passes: counter(
                "reknit_reconcile_total",
                "Passes by how they ended: success, requeue, skip, error, conflict, panic, deadline or lost",
                &["controller", "result"],
            ),
            pass_time: histogram(
                "reknit_reconcile_time_seconds",
                "How long in seconds a pass takes, its writes included",
                "controller",
            ),
            status_writes: counter(
                "reknit_status_writes_total",
                "Attempts to write a status, by whether they succeeded",
                &["controller", "result"],
            ),
            events_dropped: made(Counter::new(
                "reknit_events_dropped_total",
                "Events that were not recorded: too many waited, or the API server refused them",
            )),
        }
    }

    /// What a registry holds already (that of another Context) is counted, and not shown twice.
    fn register(&self, registry: &Registry) {
        let all: [Box<dyn Collector>; 10] = [
            Box::new(self.depth.clone()),
            Box::new(self.adds.clone()),
            Box::new(self.queue_duration.clone()),
            Box::new(self.work_duration.clone()),
            Box::new(self.retries.clone()),
            Box::new(self.working.clone()),
            Box::new(self.passes.clone()),
            Box::new(self.pass_time.clone()),
            Box::new(self.status_writes.clone()),
            Box::new(self.events_dropped.clone()),
        ];
        for collector in all {
            if let Err(error) = registry.register(collector) {
                tracing::debug!(%error, "a metric is not shown");
            }
        }
    }
}

/// The two gauges that grow by themselves while a key is worked on.
#[derive(Clone)]
struct Working(Arc<WorkingInner>);

struct WorkingInner {
    queues: Mutex<Vec<(String, Weak<dyn RunningPasses>)>>,
    unfinished: GaugeVec,
    longest: GaugeVec,
}

impl Working {
    fn new() -> Self {
        let gauge = |name: &str, help: &str| made(GaugeVec::new(Opts::new(name, help), &["name"]));
        Self(Arc::new(WorkingInner {
            queues: Mutex::default(),
            unfinished: gauge(
                "workqueue_unfinished_work_seconds",
                "How many seconds of work has been done that is in progress and hasn't been observed by work_duration",
            ),
            longest: gauge(
                "workqueue_longest_running_processor_seconds",
                "How many seconds has the longest running processor for workqueue been running",
            ),
        }))
    }
}

impl Collector for Working {
    fn desc(&self) -> Vec<&Desc> {
        [self.0.unfinished.desc(), self.0.longest.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.queues.lock().retain(|(name, queue)| {
            let Some(queue) = queue.upgrade() else { return false };
            let ages = queue.ages();
            let unfinished: Duration = ages.iter().sum();
            let longest = ages.into_iter().max().unwrap_or_default();
            self.0.unfinished.with_label_values(&[name]).set(unfinished.as_secs_f64());
            self.0.longest.with_label_values(&[name]).set(longest.as_secs_f64());
            true
        });
        [self.0.unfinished.collect(), self.0.longest.collect()].concat()
    }
}

fn counter(name: &str, help: &str, labels: &[&str]) -> CounterVec {
    made(CounterVec::new(Opts::new(name, help), labels))
}

/// From ten nanoseconds to half an hour, as client-go and controller-runtime count.
fn histogram(name: &str, help: &str, label: &str) -> HistogramVec {
    let buckets = made(exponential_buckets(1e-8, 10.0, 12));
    made(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), &[label]))
}

#[expect(clippy::expect_used, reason = "names and labels are constants, which a test makes")]
fn made<T>(metric: prometheus::Result<T>) -> T {
    metric.expect("a metric with a valid name")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;
    impl RunningPasses for One {
        fn ages(&self) -> Vec<Duration> {
            vec![Duration::from_secs(2), Duration::from_secs(3)]
        }
    }

    #[test]
    fn every_metric_has_a_name_that_prometheus_takes() {
        let registry = Registry::new();
        let families = Families::new();
        families.register(&registry);
        let metrics = Metrics(Arc::new(families));
        let works: Arc<dyn RunningPasses> = Arc::new(One);
        metrics.queue("a", Arc::downgrade(&works)).adds.inc();
        metrics.passes("a").ended("success", Duration::from_millis(3));
        let said: Vec<_> = registry.gather().iter().map(|family| family.name().to_owned()).collect();
        let wanted = ["reknit_reconcile_total", "workqueue_adds_total", "workqueue_unfinished_work_seconds"];
        assert!(wanted.iter().all(|name| said.iter().any(|said| said == name)), "{said:?}");
        let of = |name: &str| {
            let families = registry.gather();
            families.iter().find(|f| f.name() == name).unwrap().get_metric()[0].get_gauge().get_value()
        };
        assert_eq!(of("workqueue_unfinished_work_seconds"), 5.0);
        assert_eq!(of("workqueue_longest_running_processor_seconds"), 3.0);
    }

    #[test]
    fn of_two_contexts_on_one_registry_the_first_is_shown() {
        let registry = Registry::new();
        let [first, second] = [(); 2].map(|()| {
            let families = Families::new();
            families.register(&registry);
            Metrics(Arc::new(families))
        });
        first.passes("a").ended("success", Duration::ZERO);
        second.passes("b").ended("success", Duration::ZERO);
        let families = registry.gather();
        let counted = families.iter().filter(|family| family.name() == "reknit_reconcile_total");
        let passes: Vec<_> = counted.flat_map(MetricFamily::get_metric).collect();
        let controllers: Vec<_> = passes.iter().map(|passes| passes.get_label()[0].value()).collect();
        assert_eq!(controllers, ["a"]);
    }
}
