//! The metrics of the process at one moment, as views read them.
use std::collections::BTreeMap;

use prometheus::proto::{Metric, MetricFamily};
use serde::Serialize;

/// Labels that a series must have.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// The gathered metrics.
pub(super) struct Gathered(pub(super) Vec<MetricFamily>);

/// A histogram, summed over its series.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Histogram {
    count: u64,
    sum: f64,
    /// Pairs of an upper bound and the number of values up to it.
    buckets: Vec<(f64, u64)>,
}

impl Gathered {
    fn series<'a>(&'a self, name: &str, labels: Labels<'a>) -> impl Iterator<Item = &'a Metric> {
        let family = self.0.iter().find(|family| family.name() == name);
        let has = |metric: &&Metric| labels.iter().all(|(name, value)| label(metric, name) == Some(*value));
        family.into_iter().flat_map(MetricFamily::get_metric).filter(has)
    }

    /// The sum of the counters and gauges with these labels. `None` if there are none.
    pub(super) fn value(&self, name: &str, labels: Labels<'_>) -> Option<f64> {
        self.series(name, labels).map(value).reduce(|sum, value| sum + value)
    }

    /// The sums of the counters and gauges with these labels, by another label.
    pub(super) fn by(&self, name: &str, labels: Labels<'_>, by: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for metric in self.series(name, labels) {
            *sums.entry(label(metric, by).unwrap_or_default().to_owned()).or_default() += value(metric);
        }
        sums
    }

    pub(super) fn histogram(&self, name: &str, labels: Labels<'_>) -> Histogram {
        let mut sum = Histogram::default();
        for metric in self.series(name, labels) {
            let histogram = metric.get_histogram();
            sum.count += histogram.get_sample_count();
            sum.sum += histogram.get_sample_sum();
            sum.buckets.resize(histogram.get_bucket().len(), (0.0, 0));
            for (total, bucket) in sum.buckets.iter_mut().zip(histogram.get_bucket()) {
                *total = (bucket.upper_bound(), total.1 + bucket.cumulative_count());
            }
        }
        sum
    }
}

fn label<'a>(metric: &'a Metric, name: &str) -> Option<&'a str> {
    metric.get_label().iter().find(|label| label.name() == name).map(|label| label.value())
}

fn value(metric: &Metric) -> f64 {
    metric.get_counter().get_value() + metric.get_gauge().get_value()
}
