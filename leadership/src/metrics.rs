//! The metrics of leader election: of each lease, and of the buckets of each controller.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use prometheus::{
    Gauge, GaugeVec, IntGauge, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::time::Instant;

use super::{bucket::BucketWriter, members::Balance};

/// The metrics of all electors of one process, in its registry.
#[derive(Clone)]
pub(super) struct ElectionMetrics {
    status: IntGaugeVec,
    last_handover: GaugeVec,
    buckets: BucketCollector,
}

/// The metrics that the elector of one bucket sets.
#[derive(Clone)]
pub(super) struct BucketMetrics {
    status: IntGauge,
    last_handover: Gauge,
}

impl ElectionMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let status = Opts::new(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. \
             'name' is the string used to identify the lease. Please make sure to group by name.",
        );
        let last_handover = Opts::new(
            "reknit_leader_election_last_handover_timestamp_seconds",
            "Time since the Unix epoch at which this process last gained a bucket or handed one over, 0 before the first",
        );
        let metrics = Self {
            status: IntGaugeVec::new(status, &["name"])?,
            last_handover: GaugeVec::new(last_handover, &["controller"])?,
            buckets: BucketCollector::new()?,
        };
        registry.register(Box::new(metrics.status.clone()))?;
        registry.register(Box::new(metrics.last_handover.clone()))?;
        registry.register(Box::new(metrics.buckets.clone()))?;
        Ok(metrics)
    }

    /// Counts the buckets of a controller at each scrape. `bucket` is any one of them.
    pub(super) fn count_buckets(&self, controller: &str, balance: &Arc<Balance>, bucket: &BucketWriter) {
        let controller =
            ControllerBuckets { name: controller.into(), balance: balance.clone(), bucket: bucket.clone() };
        self.buckets.controllers.lock().push(controller);
    }

    pub(super) fn bucket(&self, controller: &str, lease: &str) -> BucketMetrics {
        BucketMetrics {
            status: self.status.with_label_values(&[lease]),
            last_handover: self.last_handover.with_label_values(&[controller]),
        }
    }
}

impl BucketMetrics {
    pub(super) fn set_leading(&self, leading: bool) {
        self.status.set(leading.into());
    }

    pub(super) fn record_handover(&self) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_handover.set(since_epoch.as_secs_f64());
    }
}

/// The buckets of one controller.
struct ControllerBuckets {
    name: String,
    balance: Arc<Balance>,
    bucket: BucketWriter,
}

/// Collects the numbers of buckets in each state. They are counted at each scrape, because a lease expires without an
/// event.
#[derive(Clone)]
struct BucketCollector {
    controllers: Arc<Mutex<Vec<ControllerBuckets>>>,
    led: IntGaugeVec,
    unowned: IntGaugeVec,
    in_transition: IntGaugeVec,
}

impl BucketCollector {
    fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["controller"]);
        Ok(Self {
            controllers: Arc::default(),
            led: gauge("reknit_leader_election_buckets_led", "Buckets that this process leads")?,
            unowned: gauge(
                "reknit_leader_election_buckets_unowned",
                "Buckets that no live process leads, as this process observes their leases",
            )?,
            in_transition: gauge(
                "reknit_leader_election_buckets_in_transition",
                "Buckets that another process leads than the one they are assigned to, because they are being drained, \
                 handed over or acquired",
            )?,
        })
    }

    fn gauges(&self) -> [&IntGaugeVec; 3] {
        [&self.led, &self.unowned, &self.in_transition]
    }
}

impl Collector for BucketCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for ControllerBuckets { name, balance, bucket } in &*self.controllers.lock() {
            let counts = balance.count(&bucket.states(), Instant::now());
            let values = [counts.led, counts.unowned, counts.in_transition];
            for (gauge, value) in self.gauges().into_iter().zip(values) {
                gauge.with_label_values(&[name]).set(i64::try_from(value).unwrap_or(i64::MAX));
            }
        }
        self.gauges().into_iter().flat_map(Collector::collect).collect()
    }
}
