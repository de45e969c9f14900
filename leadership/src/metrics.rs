//! The metrics of leader election: of each lease, and of the buckets of each controller.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{
    GaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// The buckets of one controller at one scrape, as this process observes them.
pub(crate) struct Sample {
    /// The leases of the buckets. The value is true for those that this process leads.
    pub(crate) leases: Vec<(Arc<str>, bool)>,
    /// The number of buckets that no live replica leads.
    pub(crate) unowned: usize,
    /// The number of buckets that are not led by the member they are assigned to.
    pub(crate) in_transition: usize,
    /// The time since the Unix epoch at which this process last gained a bucket or handed one over, in seconds.
    pub(crate) last_handover: f64,
}

/// Takes a sample of the buckets of one controller. `None` after its electors have ended.
type Sampler = Box<dyn Fn() -> Option<Sample> + Send + Sync>;

/// The metrics of leader election of one process. They are computed at each scrape, because a lease expires without an
/// event.
#[derive(Clone)]
pub(crate) struct ElectionMetrics {
    controllers: Arc<Mutex<Vec<(String, Sampler)>>>,
    status: GaugeVec,
    led: GaugeVec,
    unowned: GaugeVec,
    in_transition: GaugeVec,
    last_handover: GaugeVec,
}

impl ElectionMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str, label: &str| GaugeVec::new(Opts::new(name, help), &[label]);
        let metrics = Self {
            controllers: Arc::default(),
            status: gauge(
                "leader_election_master_status",
                "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates \
                 master. 'name' is the string used to identify the lease. Please make sure to group by name.",
                "name",
            )?,
            led: gauge(
                "reknit_leader_election_buckets_led",
                "Buckets that this process leads",
                "controller",
            )?,
            unowned: gauge(
                "reknit_leader_election_buckets_unowned",
                "Buckets that no live replica leads, as this process observes their leases. One that is cut off observes \
                 none: take the minimum over the replicas",
                "controller",
            )?,
            in_transition: gauge(
                "reknit_leader_election_buckets_in_transition",
                "Buckets that another process leads than the one they are assigned to, because they are being drained, \
                 handed over or acquired",
                "controller",
            )?,
            last_handover: gauge(
                "reknit_leader_election_last_handover_timestamp_seconds",
                "Time since the Unix epoch at which this process last gained a bucket or handed one over, 0 before the \
                 first",
                "controller",
            )?,
        };
        registry.register(Box::new(metrics.clone()))?;
        Ok(metrics)
    }

    /// Samples the buckets of this controller at each scrape.
    pub(crate) fn add(&self, controller: &str, sample: impl Fn() -> Option<Sample> + Send + Sync + 'static) {
        self.controllers.lock().push((controller.into(), Box::new(sample)));
    }

    fn gauges(&self) -> [&GaugeVec; 5] {
        [&self.status, &self.led, &self.unowned, &self.in_transition, &self.last_handover]
    }
}

impl Collector for ElectionMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (controller, sample) in &*self.controllers.lock() {
            let Some(sample) = sample() else { continue };
            for (lease, is_led) in &sample.leases {
                self.status.with_label_values(&[lease]).set(f64::from(u8::from(*is_led)));
            }
            let led = sample.leases.iter().filter(|(_, is_led)| *is_led).count();
            let counts = [
                (&self.led, led),
                (&self.unowned, sample.unowned),
                (&self.in_transition, sample.in_transition),
            ];
            for (gauge, count) in counts {
                gauge.with_label_values(&[controller]).set(count as f64);
            }
            self.last_handover.with_label_values(&[controller]).set(sample.last_handover);
        }
        self.gauges().into_iter().flat_map(Collector::collect).collect()
    }
}
