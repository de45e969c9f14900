//! The metrics of work queues, and of the passes that run.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use reknit_injection::internal::{register_durations, register_scraped};

use super::{counters, gauges};

/// controller-runtime's labels, which both have the name of the controller.
const LABELS: [&str; 2] = ["name", "controller"];

/// The label `priority` of the fast and the slow lane: the priorities that controller-runtime gives to the same keys.
const FAST: &str = "0";
const SLOW: &str = "-100";

/// The metric families of work queues.
#[derive(Clone)]
pub(crate) struct QueueFamilies {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    queue_duration: HistogramVec,
    work_duration: HistogramVec,
    retries: IntCounterVec,
    causes: IntCounterVec,
    held: IntGaugeVec,
    storm_passes: IntCounterVec,
    measured: Arc<Mutex<Vec<MeasuredQueue>>>,
}

/// The metrics of one queue.
pub(crate) struct QueueMetrics {
    fast: IntGauge,
    slow: IntGauge,
    held: IntGauge,
    pub(crate) adds: IntCounter,
    pub(crate) queue_duration: Histogram,
    pub(crate) work_duration: Histogram,
    pub(crate) retries: IntCounter,
    controller: String,
    causes: IntCounterVec,
    storm_passes: IntCounterVec,
    by_cause: Vec<([String; 2], IntCounter)>,
}

/// A queue that is measured at each scrape.
pub(crate) trait ScrapedQueue: Send + Sync {
    /// The ages of the running passes.
    fn ages(&self) -> Vec<Duration>;
    /// The times for which the oldest keys of the fast and of the slow lane have been queued; zero without a key.
    fn oldest_queued(&self) -> [Duration; 2];
}

impl QueueFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        let causes = counters(
            registry,
            "reknit_reconcile_causes_total",
            "Number of causes of passes: object, tracked, owned or watched objects, kind, config, start, resync, \
             leadership, after, retry or queue",
            &["controller", "cause", "source"],
        );
        let storm_passes = counters(
            registry,
            "reknit_storm_reconciles_total",
            "Number of passes of keys that are reconciled again and again although nothing changed from outside",
            &["controller", "cause", "source"],
        );
        let counters = |name: &str, help: &str| counters(registry, name, help, &LABELS);
        let durations = |name: &str, help: &str| register_durations(registry, name, help, &LABELS);
        let measured = Arc::default();
        register_measured(registry, Arc::clone(&measured));
        Self {
            depth: gauges(
                registry,
                "workqueue_depth",
                "Current depth of workqueue by workqueue and priority: 0, or -100 for resyncs and promotions",
                &["name", "controller", "priority"],
            ),
            adds: counters("workqueue_adds_total", "Total number of adds handled by workqueue"),
            queue_duration: durations(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested",
            ),
            work_duration: durations(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes",
            ),
            retries: counters("workqueue_retries_total", "Total number of retries handled by workqueue"),
            causes,
            held: gauges(
                registry,
                "reknit_held_keys",
                "Number of keys that wait in a storm, or because more changes than --max-unprompted-changes were made without a \
                 prompt",
                &["controller"],
            ),
            storm_passes,
            measured,
        }
    }

    /// The metrics of the queue of this controller. A pass that takes longer than `slow_after` is slow.
    pub(crate) fn of(
        &self,
        controller: &str,
        slow_after: Duration,
        queue: Weak<dyn ScrapedQueue>,
    ) -> QueueMetrics {
        self.measured.lock().push(MeasuredQueue { controller: controller.into(), slow_after, queue });
        let labels = [controller; 2];
        self.storm_passes.with_label_values(&[controller, "object", ""]); // exported before the first storm
        QueueMetrics {
            fast: self.depth.with_label_values(&[controller, controller, FAST]),
            slow: self.depth.with_label_values(&[controller, controller, SLOW]),
            held: self.held.with_label_values(&[controller]),
            adds: self.adds.with_label_values(&labels),
            queue_duration: self.queue_duration.with_label_values(&labels),
            work_duration: self.work_duration.with_label_values(&labels),
            retries: self.retries.with_label_values(&labels),
            controller: controller.into(),
            causes: self.causes.clone(),
            storm_passes: self.storm_passes.clone(),
            by_cause: Vec::new(),
        }
    }
}

impl QueueMetrics {
    /// Counts a cause of a pass by its labels `cause` and `source`. The counters are few, and found faster here than by
    /// their labels.
    pub(crate) fn count_cause(&mut self, labels: [&str; 2]) {
        let known = self.by_cause.iter().find(|(known, _)| *known == labels);
        if let Some((_, counter)) = known {
            return counter.inc();
        }
        let [cause, source] = labels;
        let counter = self.causes.with_label_values(&[&*self.controller, cause, source]);
        counter.inc();
        self.by_cause.push((labels.map(ToOwned::to_owned), counter));
    }

    /// Counts a pass of a storm by the labels of its cause.
    pub(crate) fn count_storm_pass(&self, [cause, source]: [&str; 2]) {
        self.storm_passes.with_label_values(&[&*self.controller, cause, source]).inc();
    }

    /// Sets the number of keys in the fast lane, in the slow lane, and of those that are held.
    pub(crate) fn set_depth(&self, depths: [usize; 3]) {
        for (gauge, depth) in [&self.fast, &self.slow, &self.held].into_iter().zip(depths) {
            gauge.set(i64::try_from(depth).unwrap_or(i64::MAX));
        }
    }
}

struct MeasuredQueue {
    controller: String,
    slow_after: Duration,
    queue: Weak<dyn ScrapedQueue>,
}

/// Registers the gauges that grow while a pass runs or a key is queued: a pass that never ends is in no histogram, and
/// neither is a key that no worker takes.
fn register_measured(registry: &Registry, queues: Arc<Mutex<Vec<MeasuredQueue>>>) {
    let gauges: [(&str, &str, &[&str]); 5] = [
        (
            "workqueue_unfinished_work_seconds",
            "How many seconds of work has been done that is in progress and hasn't been observed by \
             work_duration. Large values indicate stuck workers.",
            &LABELS,
        ),
        (
            "workqueue_longest_running_processor_seconds",
            "How many seconds has the longest running processor for workqueue been running",
            &LABELS,
        ),
        (
            "controller_runtime_active_workers",
            "Number of currently used workers per controller",
            &["controller"],
        ),
        (
            "reknit_slow_reconciles",
            "Number of running reconciles that have taken longer than the controller's slow_after",
            &["controller"],
        ),
        (
            "reknit_oldest_queued_seconds",
            "How many seconds has the key that was queued first waited for a worker, by priority: 0, or -100 for resyncs \
             and promotions. Keys that wait for a retry or a delay, and held or paused keys, do not count.",
            &["controller", "priority"],
        ),
    ];
    register_scraped(registry, gauges, move |[unfinished, longest, active, slow, oldest]| {
        queues.lock().retain(|MeasuredQueue { controller, slow_after, queue }| {
            let Some(queue) = queue.upgrade() else { return false };
            let ages = queue.ages();
            let slow_passes = ages.iter().filter(|age| *age > slow_after).count();
            let longest_age = ages.iter().max().copied().unwrap_or_default();
            let sum: Duration = ages.iter().sum();
            unfinished.with_label_values(&[controller; 2]).set(sum.as_secs_f64());
            longest.with_label_values(&[controller; 2]).set(longest_age.as_secs_f64());
            active.with_label_values(&[controller]).set(ages.len() as f64);
            slow.with_label_values(&[controller]).set(slow_passes as f64);
            for (priority, age) in [FAST, SLOW].into_iter().zip(queue.oldest_queued()) {
                oldest.with_label_values(&[controller, priority]).set(age.as_secs_f64());
            }
            true
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::value;

    /// A queue with passes that have been running for two and for three seconds, and with queued keys.
    struct Busy;

    impl ScrapedQueue for Busy {
        fn ages(&self) -> Vec<Duration> {
            vec![Duration::from_secs(2), Duration::from_secs(3)]
        }

        fn oldest_queued(&self) -> [Duration; 2] {
            [Duration::from_secs(7), Duration::ZERO]
        }
    }

    #[test]
    fn a_running_pass_and_a_queued_key_are_measured_before_they_end() {
        let registry = Registry::new();
        let queue: Arc<dyn ScrapedQueue> = Arc::new(Busy);
        let slow_after = Duration::from_millis(2500);
        let _metrics = QueueFamilies::new(&registry).of("a", slow_after, Arc::downgrade(&queue));
        let gauge = |name: &str| value(&registry, name, &[("controller", "a")]);
        assert_eq!(gauge("workqueue_unfinished_work_seconds"), Some(5.0));
        assert_eq!(gauge("workqueue_longest_running_processor_seconds"), Some(3.0));
        assert_eq!(gauge("controller_runtime_active_workers"), Some(2.0));
        assert_eq!(gauge("reknit_slow_reconciles"), Some(1.0));
        let oldest = |priority| {
            value(&registry, "reknit_oldest_queued_seconds", &[("controller", "a"), ("priority", priority)])
        };
        assert_eq!((oldest(FAST), oldest(SLOW)), (Some(7.0), Some(0.0)));
    }
}
