//! The metrics of the passes of a controller.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use reknit_apis::Key;
use reknit_injection::internal::{register_durations, register_scraped};

use super::{counted_keys::CountedKeys, counters, gauges};
use crate::{Outcome, Result, limits::PassAborted, outcome::Next};

/// The label `result` of passes. Of these, controller-runtime has `success`, `requeue_after` and `error`.
const RESULTS: [&str; 7] = ["success", "requeue_after", "skip", "waiting", "conflict", "lost", "error"];

/// The result of a pass. The first ones are those of [`RESULTS`], in the same order; the last ones are errors too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassResult {
    Success,
    RequeueAfter,
    Skip,
    /// The pass waits for the first list of a Kind.
    Waiting,
    Conflict,
    /// The pass was dropped with its leadership.
    Lost,
    Error,
    Panic,
    Deadline,
}

impl PassResult {
    pub(crate) fn of(result: &Result<Outcome>) -> Self {
        match result {
            Ok(outcome) => match outcome.next() {
                Next::Done => Self::Success,
                Next::After(_) => Self::RequeueAfter,
                Next::Skip => Self::Skip,
            },
            Err(error) => match PassAborted::of(error) {
                Some(PassAborted::Panic(_)) => Self::Panic,
                Some(PassAborted::Deadline(..)) => Self::Deadline,
                None if error.is_conflict() => Self::Conflict,
                None if error.is_waiting() => Self::Waiting,
                None => Self::Error,
            },
        }
    }

    /// The name in logs and traces, which also tells panics and missed deadlines from other errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Deadline => "deadline",
            result => RESULTS[result.index()],
        }
    }

    pub(crate) fn is_failure(self) -> bool {
        matches!(self, Self::Error | Self::Panic | Self::Deadline)
    }

    /// The index in [`RESULTS`].
    fn index(self) -> usize {
        (self as usize).min(RESULTS.len() - 1)
    }
}

/// The metric families of passes.
#[derive(Clone)]
pub(super) struct PassFamilies {
    passes: IntCounterVec,
    errors: IntCounterVec,
    terminal_errors: IntCounterVec,
    panics: IntCounterVec,
    timeouts: IntCounterVec,
    time: HistogramVec,
    requeue_after: HistogramVec,
    workers: IntGaugeVec,
    failing: IntGaugeVec,
    paused: IntGaugeVec,
    status_writes: IntCounterVec,
    dropped_status_fields: IntCounterVec,
    keys_with_dropped_status_fields: IntGaugeVec,
    fight_writes: IntCounterVec,
    no_op_writes: IntCounterVec,
    /// The controllers whose failures are measured at each scrape.
    measured: Arc<Mutex<Vec<Weak<Series>>>>,
}

/// The metrics of the passes of one controller. Their labels are looked up once, since a pass may take microseconds.
#[derive(Clone)]
pub(crate) struct PassMetrics(Arc<Series>);

struct Series {
    passes: [IntCounter; RESULTS.len()],
    errors: IntCounter,
    terminal_errors: IntCounter,
    panics: IntCounter,
    timeouts: IntCounter,
    time: Histogram,
    requeue_after: Histogram,
    workers: IntGauge,
    failing: CountedKeys,
    paused: CountedKeys,
    successful_status_writes: IntCounter,
    failed_status_writes: IntCounter,
    dropped_status_fields: IntCounter,
    keys_with_dropped_status_fields: CountedKeys,
    fight_writes: IntCounterVec,
    no_op_writes: IntCounterVec,
    controller: String,
}

impl PassFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        let by_controller = |name: &str, help: &str| counters(registry, name, help, &["controller"]);
        let by_result = |name: &str, help: &str| counters(registry, name, help, &["controller", "result"]);
        let gauge = |name: &str, help: &str| gauges(registry, name, help, &["controller"]);
        let durations = |name: &str, help: &str| register_durations(registry, name, help, &["controller"]);
        let measured = Arc::default();
        register_measured(registry, Arc::clone(&measured));
        Self {
            passes: by_result(
                "controller_runtime_reconcile_total",
                "Total number of reconciliations per controller, by result: success, requeue_after, error, and besides \
                 those of controller-runtime skip, waiting, conflict, or lost with the leadership",
            ),
            errors: by_controller(
                "controller_runtime_reconcile_errors_total",
                "Total number of reconciliation errors per controller",
            ),
            terminal_errors: by_controller(
                "controller_runtime_terminal_reconcile_errors_total",
                "Total number of terminal reconciliation errors per controller, which are not retried",
            ),
            panics: by_controller(
                "controller_runtime_reconcile_panics_total",
                "Total number of reconciliation panics per controller",
            ),
            timeouts: by_controller(
                "controller_runtime_reconcile_timeouts_total",
                "Total number of reconciliation timeouts per controller",
            ),
            time: durations(
                "controller_runtime_reconcile_time_seconds",
                "Length of time per reconciliation per controller, including its writes",
            ),
            requeue_after: durations(
                "reknit_requeue_after_seconds",
                "The delay after which reconcilers asked for the next reconcile, by Outcome::after",
            ),
            workers: gauge(
                "controller_runtime_max_concurrent_reconciles",
                "Maximum number of concurrent reconciles per controller",
            ),
            failing: gauge(
                "reknit_failing_keys",
                "Keys whose last reconcile failed, other than by a conflict",
            ),
            paused: gauge("reknit_paused_keys", "Keys whose object is paused by its annotation"),
            status_writes: by_result(
                "reknit_status_writes_total",
                "Number of status writes by result: success or error",
            ),
            dropped_status_fields: by_controller(
                "reknit_status_fields_dropped_total",
                "Number of status writes of which the API server did not store all fields",
            ),
            keys_with_dropped_status_fields: gauge(
                "reknit_status_fields_dropped_keys",
                "Keys of whose last status the API server did not store all fields",
            ),
            fight_writes: counters(
                registry,
                "reknit_fight_writes_total",
                "Number of writes that restored a field which another client keeps changing",
                &["controller", "group", "resource"],
            ),
            no_op_writes: counters(
                registry,
                "reknit_no_op_writes_total",
                "Number of writes that left an object as it was",
                &["controller", "group", "resource"],
            ),
            measured,
        }
    }

    pub(super) fn of(&self, controller: &str) -> PassMetrics {
        let by_controller = [controller];
        let status_writes = |result| self.status_writes.with_label_values(&[controller, result]);
        let series = Arc::new(Series {
            passes: RESULTS.map(|result| self.passes.with_label_values(&[controller, result])),
            errors: self.errors.with_label_values(&by_controller),
            terminal_errors: self.terminal_errors.with_label_values(&by_controller),
            panics: self.panics.with_label_values(&by_controller),
            timeouts: self.timeouts.with_label_values(&by_controller),
            time: self.time.with_label_values(&by_controller),
            requeue_after: self.requeue_after.with_label_values(&by_controller),
            workers: self.workers.with_label_values(&by_controller),
            failing: CountedKeys::new(self.failing.with_label_values(&by_controller)),
            paused: CountedKeys::new(self.paused.with_label_values(&by_controller)),
            successful_status_writes: status_writes("success"),
            failed_status_writes: status_writes("error"),
            dropped_status_fields: self.dropped_status_fields.with_label_values(&by_controller),
            keys_with_dropped_status_fields: CountedKeys::new(
                self.keys_with_dropped_status_fields.with_label_values(&by_controller),
            ),
            fight_writes: self.fight_writes.clone(),
            no_op_writes: self.no_op_writes.clone(),
            controller: controller.into(),
        });
        self.measured.lock().push(Arc::downgrade(&series));
        PassMetrics(series)
    }
}

/// Registers the gauge of the oldest failure, which grows between two passes.
fn register_measured(registry: &Registry, controllers: Arc<Mutex<Vec<Weak<Series>>>>) {
    let help = "Seconds since the first of the failures in a row of the key that has failed longest; conflicts do not count";
    let gauge = ("reknit_oldest_failing_seconds", help, &["controller"][..]);
    register_scraped(registry, [gauge], move |[oldest]| {
        controllers.lock().retain(|series| {
            let Some(series) = series.upgrade() else { return false };
            let seconds = series.failing.longest().as_secs_f64();
            oldest.with_label_values(&[&series.controller]).set(seconds);
            true
        });
    });
}

impl PassMetrics {
    /// Exports the metrics of a controller of this Kind before their first change.
    pub(crate) fn of_kind(&self, group: &str, resource: &str) -> Self {
        for family in [&self.0.fight_writes, &self.0.no_op_writes] {
            family.with_label_values(&[&*self.0.controller, group, resource]);
        }
        self.clone()
    }

    /// Records a write that left an object of this Kind as it was.
    pub(crate) fn record_no_op_write(&self, [group, resource]: [&str; 2]) {
        let Self(series) = self;
        series.no_op_writes.with_label_values(&[&*series.controller, group, resource]).inc();
    }

    /// Records a write that restored a field of an object of this Kind in a fight.
    pub(crate) fn record_fight_write(&self, group: &str, plural: &str) {
        let Self(series) = self;
        series.fight_writes.with_label_values(&[&*series.controller, group, plural]).inc();
    }

    pub(crate) fn record_pass(&self, result: &Result<Outcome>, took: Duration) {
        let Self(series) = self;
        let pass = PassResult::of(result);
        self.record(pass, took);
        match result {
            Ok(outcome) => {
                if let Next::After(wait) = outcome.next() {
                    series.requeue_after.observe(wait.as_secs_f64());
                }
            }
            Err(error) if pass.is_failure() => {
                series.errors.inc();
                series.terminal_errors.inc_by(error.is_permanent().into());
                series.panics.inc_by((pass == PassResult::Panic).into());
                series.timeouts.inc_by((pass == PassResult::Deadline).into());
            }
            Err(_) => {}
        }
    }

    /// Records a pass that was dropped with its leadership.
    pub(crate) fn record_lost_pass(&self, took: Duration) {
        self.record(PassResult::Lost, took);
    }

    fn record(&self, pass: PassResult, took: Duration) {
        self.0.passes[pass.index()].inc();
        self.0.time.observe(took.as_secs_f64());
    }

    pub(crate) fn set_workers(&self, workers: usize) {
        self.0.workers.set(i64::try_from(workers).unwrap_or(i64::MAX));
    }

    /// The keys whose last pass failed, whether or not it is retried.
    pub(crate) fn failing(&self) -> &CountedKeys {
        &self.0.failing
    }

    /// The keys whose objects are paused.
    pub(crate) fn paused(&self) -> &CountedKeys {
        &self.0.paused
    }

    /// Drops the keys that this process no longer leads.
    pub(crate) fn drop_where(&self, is_lost: impl Fn(&Key) -> bool) {
        self.0.failing.remove_where(&is_lost);
        self.0.paused.remove_where(&is_lost);
        self.0.keys_with_dropped_status_fields.remove_where(&is_lost);
    }

    pub(crate) fn record_status_write(&self, succeeded: bool) {
        let Self(series) = self;
        if succeeded { &series.successful_status_writes } else { &series.failed_status_writes }.inc();
    }

    pub(crate) fn record_dropped_status_fields(&self) {
        self.0.dropped_status_fields.inc();
    }

    /// The keys of whose last status the API server did not store all fields.
    pub(crate) fn with_dropped_status_fields(&self) -> &CountedKeys {
        &self.0.keys_with_dropped_status_fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, metrics::testing::value, waits::Waits};

    #[test]
    fn a_pass_counts_by_its_result_and_an_error_by_its_kind_too() {
        let registry = Registry::new();
        let metrics = PassFamilies::new(&registry).of("a");
        let passes = [
            Ok(Outcome::done()),
            Ok(Outcome::after(Duration::from_millis(30))),
            Ok(Outcome::skip()),
            Err(Error::from("as planned")),
            Err(Error::permanent("as planned")),
            Err(PassAborted::Panic("as planned".into()).into()),
            Err(PassAborted::Deadline(Duration::ZERO, Waits::default()).into()),
        ];
        passes.iter().for_each(|pass| metrics.record_pass(pass, Duration::ZERO));
        metrics.record_lost_pass(Duration::ZERO);
        let count = |name: &str| value(&registry, name, &[("controller", "a")]);
        let by_result = RESULTS.map(|result| {
            value(&registry, "controller_runtime_reconcile_total", &[("result", result)]).unwrap()
        });
        assert_eq!(by_result, [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 4.0]);
        assert_eq!(count("controller_runtime_reconcile_errors_total"), Some(4.0));
        assert_eq!(count("controller_runtime_terminal_reconcile_errors_total"), Some(1.0));
        assert_eq!(count("controller_runtime_reconcile_panics_total"), Some(1.0));
        assert_eq!(count("controller_runtime_reconcile_timeouts_total"), Some(1.0));
        assert_eq!(count("controller_runtime_reconcile_time_seconds"), Some(8.0));
        assert_eq!(count("reknit_requeue_after_seconds"), Some(1.0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_failure_is_that_of_the_key_that_has_failed_longest_without_a_success() {
        let registry = Registry::new();
        let metrics = PassFamilies::new(&registry).of("a");
        let oldest = || value(&registry, "reknit_oldest_failing_seconds", &[("controller", "a")]);
        assert_eq!(oldest(), Some(0.0));
        for number in 0..20 {
            // Another key fails each minute, and the next one succeeds again.
            metrics.failing().add(&Key::new("shop", &number.to_string()));
            tokio::time::advance(Duration::from_secs(60)).await;
            metrics.failing().remove(&Key::new("shop", &(number - 1).to_string()));
            assert_eq!(oldest(), Some(60.0));
        }
        tokio::time::advance(Duration::from_secs(900)).await;
        assert_eq!(oldest(), Some(960.0));
    }
}
