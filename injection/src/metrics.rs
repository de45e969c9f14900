//! Creates and registers metrics.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// The buckets of every duration, in seconds. They contain all buckets that controller-runtime and client-go have for
/// the metrics of the same names, so queries for one bucket work too.
const DURATIONS: [f64; 54] = [
    1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2,
    0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5,
    5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 100.0, 300.0, 1000.0, 3600.0,
    36000.0,
];

/// Registers a metric whose name and labels are constants. If a second Context uses the same registry, its metrics are
/// counted but not exported.
///
/// # Panics
///
/// Panics if the name or a label is not valid.
#[expect(clippy::expect_used, reason = "names and labels are constants, and tests create every metric")]
pub fn register_metric<C: Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<C>,
) -> C {
    let metric = metric.expect("the name of the metric is valid");
    if let Err(error) = registry.register(Box::new(metric.clone())) {
        tracing::debug!(%error, "a metric is not exported");
    }
    metric
}

/// Registers a histogram of durations in seconds, as [`register_metric`] does.
///
/// # Panics
///
/// Panics if the name or a label is not valid.
pub fn register_durations(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
    let opts = HistogramOpts::new(name, help).buckets(DURATIONS.into());
    register_metric(registry, HistogramVec::new(opts, labels))
}

/// Registers gauges by their names, descriptions and labels, as [`register_metric`] does. `measure` sets them at each
/// scrape.
///
/// # Panics
///
/// Panics if the name or a label is not valid.
#[expect(clippy::expect_used, reason = "names and labels are constants, and tests create every metric")]
pub fn register_scraped<const N: usize>(
    registry: &Registry,
    gauges: [(&str, &str, &[&str]); N],
    measure: impl FnMut(&[GaugeVec; N]) + Send + 'static,
) {
    let gauges = gauges.map(|(name, help, labels)| {
        GaugeVec::new(Opts::new(name, help), labels).expect("the name of the metric is valid")
    });
    register_metric(registry, Ok(Scraped { gauges, measure: Arc::new(Mutex::new(measure)) }));
}

/// Sets gauges to what it measures.
type Measure<const N: usize> = dyn FnMut(&[GaugeVec; N]) + Send;

/// Gauges that are set at each scrape.
#[derive(Clone)]
struct Scraped<const N: usize> {
    gauges: [GaugeVec; N],
    /// Locked until the gauges are collected, so that another scrape does not reset them meanwhile.
    measure: Arc<Mutex<Measure<N>>>,
}

impl<const N: usize> Collector for Scraped<N> {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut measure = self.measure.lock();
        (*measure)(&self.gauges);
        self.gauges.iter().flat_map(Collector::collect).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The buckets of durations in controller-runtime 0.22 (reconciles and webhooks, then the queue) and in component-base
    /// 0.34 (requests).
    fn upstream_buckets() -> Vec<f64> {
        let reconciles = [
            0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
            1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
            25.0, 30.0, 40.0, 50.0, 60.0,
        ];
        let queue = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0];
        let requests = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
        [&reconciles[..], &queue, &requests].concat()
    }

    #[test]
    fn durations_have_every_bucket_of_controller_runtime_and_client_go() {
        let registry = Registry::new();
        register_durations(&registry, "seconds", "Seconds", &[]).with_label_values::<&str>(&[]).observe(1.0);
        let families = registry.gather();
        let buckets: Vec<f64> = families[0].get_metric()[0]
            .get_histogram()
            .get_bucket()
            .iter()
            .map(|bucket| bucket.upper_bound())
            .collect();
        let missing: Vec<f64> =
            upstream_buckets().into_iter().filter(|bucket| !buckets.contains(bucket)).collect();
        assert!(missing.is_empty(), "{missing:?} are not among {buckets:?}");
    }
}
