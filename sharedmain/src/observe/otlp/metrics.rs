//! The conversion of metrics from Prometheus to OTLP, with the same names, labels and values.

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum, Summary,
        SummaryDataPoint, metric::Data, number_data_point, summary_data_point::ValueAtQuantile,
    },
};
use prometheus::proto::{self, MetricFamily, MetricType};

const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// The period that a value was counted in, in nanoseconds since 1970.
#[derive(Clone, Copy)]
pub(super) struct Period {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The current time in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = reknit_injection::internal::now().as_duration();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Period {
    /// Converts a family of metrics.
    pub(super) fn convert(self, family: &MetricFamily) -> Metric {
        let points = family.get_metric();
        let data = match family.get_field_type() {
            MetricType::COUNTER => Data::Sum(Sum {
                data_points: self.numbers(points, |metric| metric.get_counter().get_value()),
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            }),
            MetricType::GAUGE => {
                Data::Gauge(Gauge { data_points: self.numbers(points, |m| m.get_gauge().get_value()) })
            }
            MetricType::UNTYPED => Data::Gauge(Gauge { data_points: self.numbers(points, untyped) }),
            MetricType::HISTOGRAM => Data::Histogram(Histogram {
                data_points: points.iter().map(|metric| self.histogram(metric)).collect(),
                aggregation_temporality: CUMULATIVE,
            }),
            MetricType::SUMMARY => Data::Summary(Summary {
                data_points: points.iter().map(|metric| self.summary(metric)).collect(),
            }),
        };
        Metric {
            name: family.name().to_owned(),
            description: family.help().to_owned(),
            data: Some(data),
            ..Metric::default()
        }
    }

    fn numbers(
        self,
        metrics: &[proto::Metric],
        value: impl Fn(&proto::Metric) -> f64,
    ) -> Vec<NumberDataPoint> {
        let point = |metric| NumberDataPoint {
            attributes: attributes(metric),
            start_time_unix_nano: self.start,
            time_unix_nano: self.end,
            value: Some(number_data_point::Value::AsDouble(value(metric))),
            ..NumberDataPoint::default()
        };
        metrics.iter().map(point).collect()
    }

    /// Converts a histogram. Prometheus counts the values up to a bound, OTLP those between two bounds.
    fn histogram(self, metric: &proto::Metric) -> HistogramDataPoint {
        let histogram = metric.get_histogram();
        let finite_buckets = histogram.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite());
        let (explicit_bounds, cumulative_counts): (Vec<_>, Vec<_>) =
            finite_buckets.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count())).unzip();
        let count = histogram.get_sample_count();
        let counts = cumulative_counts.iter().copied().chain([count]);
        let previous_counts = std::iter::once(0).chain(cumulative_counts.iter().copied());
        let bucket_counts =
            counts.zip(previous_counts).map(|(count, previous)| count.saturating_sub(previous));
        HistogramDataPoint {
            attributes: attributes(metric),
            start_time_unix_nano: self.start,
            time_unix_nano: self.end,
            count,
            sum: Some(histogram.get_sample_sum()),
            bucket_counts: bucket_counts.collect(),
            explicit_bounds,
            ..HistogramDataPoint::default()
        }
    }

    fn summary(self, metric: &proto::Metric) -> SummaryDataPoint {
        let summary = metric.get_summary();
        let quantiles = summary.get_quantile().iter();
        SummaryDataPoint {
            attributes: attributes(metric),
            start_time_unix_nano: self.start,
            time_unix_nano: self.end,
            count: summary.sample_count(),
            sum: summary.sample_sum(),
            quantile_values: quantiles
                .map(|q| ValueAtQuantile { quantile: q.quantile(), value: q.value() })
                .collect(),
            ..SummaryDataPoint::default()
        }
    }
}

#[expect(deprecated, reason = "this crate has no untyped metrics, but the collector of a user may")]
fn untyped(metric: &proto::Metric) -> f64 {
    metric.get_untyped().get_value()
}

fn attributes(metric: &proto::Metric) -> Vec<KeyValue> {
    let label = |label: &proto::LabelPair| KeyValue {
        key: label.name().to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(label.value().to_owned())) }),
        ..KeyValue::default()
    };
    metric.get_label().iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntGauge, Registry};

    use super::*;

    fn metrics(collector: impl prometheus::core::Collector + 'static) -> Vec<Metric> {
        let registry = Registry::new();
        registry.register(Box::new(collector)).unwrap();
        registry.gather().iter().map(|family| Period { start: 1, end: 2 }.convert(family)).collect()
    }

    fn value(point: &NumberDataPoint) -> f64 {
        match point.value {
            Some(number_data_point::Value::AsDouble(value)) => value,
            _ => panic!("{point:?}"),
        }
    }

    #[test]
    fn a_counter_is_a_monotonic_sum_since_the_start() {
        let counter = IntCounter::new("passes_total", "Passes").unwrap();
        counter.inc_by(3);
        let metric = &metrics(counter)[0];
        assert_eq!((&*metric.name, &*metric.description), ("passes_total", "Passes"));
        let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
        assert_eq!((sum.is_monotonic, sum.aggregation_temporality), (true, CUMULATIVE));
        let point = &sum.data_points[0];
        assert_eq!((value(point), point.start_time_unix_nano, point.time_unix_nano), (3.0, 1, 2));
    }

    #[test]
    fn a_gauge_stays_a_gauge() {
        let gauge = IntGauge::new("depth", "Depth").unwrap();
        gauge.set(-2);
        let Some(Data::Gauge(gauge)) = &metrics(gauge)[0].data else { panic!() };
        assert_eq!(value(&gauge.data_points[0]), -2.0);
    }

    #[test]
    fn a_histogram_counts_the_values_between_its_bounds() {
        let options = HistogramOpts::new("seconds", "Seconds").buckets(vec![1.0, 10.0]);
        let histogram = HistogramVec::new(options, &["name"]).unwrap();
        [0.5, 0.6, 5.0, 50.0, 60.0, 70.0]
            .iter()
            .for_each(|v| histogram.with_label_values(&["a"]).observe(*v));
        let Some(Data::Histogram(histogram)) = &metrics(histogram)[0].data else { panic!() };
        let point = &histogram.data_points[0];
        assert_eq!(point.explicit_bounds, [1.0, 10.0]);
        assert_eq!(point.bucket_counts, [2, 1, 3]);
        assert_eq!(point.count, point.bucket_counts.iter().sum::<u64>());
        assert_eq!(point.sum, Some(186.1));
        assert_eq!(point.attributes[0].key, "name");
    }
}
