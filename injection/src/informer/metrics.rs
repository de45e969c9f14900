//! The metrics of informers.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, core::Collector};
use reknit_apis::internal::HashMap;

/// The metric families of all informers, with the label `name`. Metrics that client-go's reflectors also have carry
/// client-go's names.
///
/// Informers of one name, such as a typed and a dynamic informer of the same Kind, share a series, which holds their
/// sum and is removed when the last of these informers is dropped.
#[derive(Clone)]
pub(crate) struct MetricFamilies {
    objects: IntGaugeVec,
    bytes: IntGaugeVec,
    unsynced: IntGaugeVec,
    events: IntCounterVec,
    lists: IntCounterVec,
    watches: IntCounterVec,
    failures: IntCounterVec,
    /// The number of informers of each name.
    informers: Arc<Mutex<HashMap<String, usize>>>,
}

/// The metrics of one informer, looked up in advance, so that counting allocates nothing.
pub(crate) struct InformerMetrics {
    objects: GaugeShare,
    bytes: GaugeShare,
    pub(crate) events: IntCounter,
    pub(crate) lists: IntCounter,
    pub(crate) watches: IntCounter,
    pub(crate) failures: IntCounter,
    name: String,
    families: MetricFamilies,
}

/// One informer's contribution to a gauge that all informers of its name share.
pub(crate) struct GaugeShare {
    gauge: IntGauge,
    value: AtomicI64,
}

impl GaugeShare {
    fn of(gauge: IntGauge) -> Self {
        Self { gauge, value: AtomicI64::new(0) }
    }

    pub(crate) fn set(&self, value: usize) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.gauge.add(value - self.value.swap(value, Ordering::Relaxed));
    }
}

impl Drop for GaugeShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl MetricFamilies {
    /// Registers the families. The metrics of a second Context over the same registry are not exported.
    pub(crate) fn new(registry: &Registry) -> Self {
        let gauge =
            |name, help| register_metric(registry, IntGaugeVec::new(Opts::new(name, help), &["name"]));
        let counter =
            |name, help| register_metric(registry, IntCounterVec::new(Opts::new(name, help), &["name"]));
        Self {
            objects: gauge("reflector_objects", "Objects in the cache of the informer"),
            bytes: gauge("reflector_object_bytes", "Size of these objects as compact JSON"),
            unsynced: gauge(
                "reflector_unsynced",
                "Namespaces of the informer whose objects are not in the cache; at most 1 if it selects all namespaces",
            ),
            events: counter("reflector_events_total", "Watch events received"),
            lists: counter("reflector_lists_total", "Lists begun, the first and each one after a gap"),
            watches: counter("reflector_watches_total", "Watches opened"),
            failures: counter("reflector_failures_total", "Lists and watches that failed"),
            informers: Arc::default(),
        }
    }

    pub(crate) fn of(&self, name: &str) -> InformerMetrics {
        let mut informers = self.informers.lock();
        *informers.entry(name.into()).or_default() += 1;
        InformerMetrics {
            objects: GaugeShare::of(self.objects.with_label_values(&[name])),
            bytes: GaugeShare::of(self.bytes.with_label_values(&[name])),
            events: self.events.with_label_values(&[name]),
            lists: self.lists.with_label_values(&[name]),
            watches: self.watches.with_label_values(&[name]),
            failures: self.failures.with_label_values(&[name]),
            name: name.into(),
            families: self.clone(),
        }
    }
}

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

impl InformerMetrics {
    /// The share of the gauge of namespaces whose objects are not in the cache.
    pub(crate) fn unsynced(&self) -> GaugeShare {
        GaugeShare::of(self.families.unsynced.with_label_values(&[&self.name]))
    }

    pub(crate) fn set_size(&self, objects: usize, bytes: usize) {
        self.objects.set(objects);
        self.bytes.set(bytes);
    }
}

impl Drop for InformerMetrics {
    fn drop(&mut self) {
        let mut informers = self.families.informers.lock();
        if let Some(count) = informers.get_mut(&self.name).filter(|count| **count > 1) {
            *count -= 1;
            return;
        }
        informers.remove(&self.name);
        let labels = &[self.name.as_str()];
        let MetricFamilies { objects, bytes, unsynced, events, lists, watches, failures, .. } =
            &self.families;
        for gauges in [objects, bytes, unsynced] {
            let _ = gauges.remove_label_values(labels);
        }
        for counters in [events, lists, watches, failures] {
            let _ = counters.remove_label_values(labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `reflector_objects`, by name of the informer.
    fn objects(registry: &Registry) -> Vec<(String, f64)> {
        let families = registry.gather();
        let objects = families.iter().filter(|family| family.name() == "reflector_objects");
        let series = objects.flat_map(|family| family.get_metric());
        series.map(|m| (m.get_label()[0].value().to_owned(), m.get_gauge().get_value())).collect()
    }

    #[test]
    fn informers_of_one_name_share_a_series_until_the_last_is_dropped() {
        let registry = Registry::new();
        let families = MetricFamilies::new(&registry);
        let (typed, dynamic, other) = (families.of("pods"), families.of("pods"), families.of("nodes"));
        typed.set_size(3, 300);
        dynamic.set_size(5, 500);
        dynamic.set_size(4, 400);
        other.set_size(1, 100);
        assert_eq!(objects(&registry), [("nodes".into(), 1.0), ("pods".into(), 7.0)]);
        drop(typed);
        dynamic.lists.inc();
        assert_eq!(objects(&registry), [("nodes".into(), 1.0), ("pods".into(), 4.0)]);
        drop(dynamic);
        assert_eq!(objects(&registry), [("nodes".into(), 1.0)]);
        families.of("pods").set_size(2, 200);
        drop(other);
        assert_eq!(objects(&registry), []);
    }
}
