//! The metrics of informers.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicI64, Ordering},
};

use parking_lot::Mutex;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use reknit_apis::internal::{HashMap, now};
use tokio::time::Instant;

use crate::metrics::{register_metric, register_scraped};

/// The metric families of all informers, with the label `name`. Metrics that client-go's reflectors also have carry
/// client-go's names.
///
/// Informers of one name, such as a typed and a dynamic informer of the same Kind, share a series, which holds their
/// sum and is removed when the last of these informers is dropped.
#[derive(Clone)]
pub(crate) struct MetricFamilies {
    objects: IntGaugeVec,
    bytes: IntGaugeVec,
    undecodable: IntGaugeVec,
    unsynced: IntGaugeVec,
    events: IntCounterVec,
    lists: IntCounterVec,
    watches: IntCounterVec,
    failures: IntCounterVec,
    last_changes: GaugeVec,
    /// The last responses to each informer, by its name.
    responses: Arc<Mutex<Vec<(String, WeakResponses)>>>,
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
    last_change: Gauge,
    pub(crate) last_responses: LastResponses,
    name: String,
    families: MetricFamilies,
}

/// One informer's contribution to a gauge that all informers of its name share.
pub(crate) struct GaugeShare {
    gauge: IntGauge,
    value: AtomicI64,
}

/// The time of the last response to each reflector of an informer: a page, an event or a bookmark. Empty before the
/// informer starts.
#[derive(Clone, Default)]
pub(crate) struct LastResponses(Arc<Mutex<Vec<Instant>>>);

impl LastResponses {
    /// Starts to measure, for this number of reflectors.
    pub(crate) fn start(&self, reflectors: usize) {
        *self.0.lock() = vec![Instant::now(); reflectors];
    }

    /// Records a response to this reflector.
    pub(crate) fn record(&self, reflector: usize) {
        if let Some(last) = self.0.lock().get_mut(reflector) {
            *last = Instant::now();
        }
    }
}

/// The times of the last responses to the reflectors of an informer, while it runs.
type WeakResponses = Weak<Mutex<Vec<Instant>>>;

/// Measures the age of the last response to each informer.
fn measure_ages(informers: &mut Vec<(String, WeakResponses)>, ages: &GaugeVec) {
    ages.reset();
    informers.retain(|(name, last_responses)| {
        let Some(last_responses) = last_responses.upgrade() else { return false };
        if let Some(earliest) = last_responses.lock().iter().min() {
            let seconds = ages.with_label_values(&[name]);
            seconds.set(seconds.get().max(earliest.elapsed().as_secs_f64()));
        }
        true
    });
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
        let last_changes = Opts::new(
            "reflector_last_change_timestamp_seconds",
            "Unix time of the last watch event about an object; 0 before the first",
        );
        let responses: Arc<Mutex<Vec<(String, WeakResponses)>>> = Arc::default();
        let help = "Seconds since the API server last sent a page, an event or a bookmark to the informer";
        let (ages, measured) =
            (("reflector_last_response_age_seconds", help, &["name"][..]), responses.clone());
        register_scraped(registry, [ages], move |[ages]| measure_ages(&mut measured.lock(), ages));
        Self {
            objects: gauge("reflector_objects", "Objects in the cache of the informer"),
            bytes: gauge("reflector_object_bytes", "Size of these objects as compact JSON"),
            undecodable: gauge(
                "reflector_undecodable_objects",
                "Objects that the informer selects, whose newest state cannot be decoded, and which are skipped",
            ),
            unsynced: gauge(
                "reflector_unsynced",
                "Namespaces of the informer whose objects are not in the cache; at most 1 if it selects all namespaces",
            ),
            events: counter("reflector_events_total", "Watch events received"),
            lists: counter("reflector_lists_total", "Lists begun, the first and each one after a gap"),
            watches: counter("reflector_watches_total", "Watches opened"),
            failures: counter("reflector_failures_total", "Lists and watches that failed"),
            last_changes: register_metric(registry, GaugeVec::new(last_changes, &["name"])),
            responses,
            informers: Arc::default(),
        }
    }

    pub(crate) fn of(&self, name: &str) -> InformerMetrics {
        let mut informers = self.informers.lock();
        *informers.entry(name.into()).or_default() += 1;
        let last_responses = LastResponses::default();
        self.responses.lock().push((name.into(), Arc::downgrade(&last_responses.0)));
        InformerMetrics {
            objects: GaugeShare::of(self.objects.with_label_values(&[name])),
            bytes: GaugeShare::of(self.bytes.with_label_values(&[name])),
            events: self.events.with_label_values(&[name]),
            lists: self.lists.with_label_values(&[name]),
            watches: self.watches.with_label_values(&[name]),
            failures: self.failures.with_label_values(&[name]),
            last_change: self.last_changes.with_label_values(&[name]),
            last_responses,
            name: name.into(),
            families: self.clone(),
        }
    }
}

impl InformerMetrics {
    /// The share of the gauge of objects that cannot be decoded.
    pub(crate) fn undecodable(&self) -> GaugeShare {
        GaugeShare::of(self.families.undecodable.with_label_values(&[&self.name]))
    }

    /// The share of the gauge of namespaces whose objects are not in the cache.
    pub(crate) fn unsynced(&self) -> GaugeShare {
        GaugeShare::of(self.families.unsynced.with_label_values(&[&self.name]))
    }

    /// Records that the watch reported a change of an object.
    pub(crate) fn record_change(&self) {
        self.last_change.set(now().as_duration().as_secs_f64());
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
        let MetricFamilies {
            objects,
            bytes,
            undecodable,
            unsynced,
            events,
            lists,
            watches,
            failures,
            last_changes,
            ..
        } = &self.families;
        for gauges in [objects, bytes, undecodable, unsynced] {
            let _ = gauges.remove_label_values(labels);
        }
        for counters in [events, lists, watches, failures] {
            let _ = counters.remove_label_values(labels);
        }
        let _ = last_changes.remove_label_values(labels);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The values of `reflector_objects`, by name of the informer.
    fn objects(registry: &Registry) -> Vec<(String, f64)> {
        let families = registry.gather();
        let objects = families.iter().filter(|family| family.name() == "reflector_objects");
        let series = objects.flat_map(|family| family.get_metric());
        series.map(|m| (m.get_label()[0].value().to_owned(), m.get_gauge().get_value())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_of_the_last_response_is_that_of_the_reflector_which_waits_longest() {
        let registry = Registry::new();
        let informer = MetricFamilies::new(&registry).of("pods");
        let age = || {
            let families = registry.gather();
            let family =
                families.iter().find(|family| family.name() == "reflector_last_response_age_seconds")?;
            Some(family.get_metric()[0].get_gauge().get_value())
        };
        assert_eq!(age(), None, "not started");
        informer.last_responses.start(2);
        tokio::time::advance(Duration::from_secs(30)).await;
        informer.last_responses.record(0);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(age(), Some(40.0));
        informer.last_responses.record(1);
        assert_eq!(age(), Some(10.0));
        drop(informer);
        assert_eq!(age(), None);
    }

    #[test]
    fn the_time_of_the_last_change_is_0_until_there_is_one() {
        let registry = Registry::new();
        let informer = MetricFamilies::new(&registry).of("pods");
        let time = || {
            let families = registry.gather();
            let name = "reflector_last_change_timestamp_seconds";
            let family = families.iter().find(|family| family.name() == name)?;
            Some(family.get_metric()[0].get_gauge().get_value())
        };
        assert_eq!(time(), Some(0.0));
        let before = now().as_second() as f64;
        informer.record_change();
        assert!(time() >= Some(before), "{:?}", time());
        drop(informer);
        assert_eq!(time(), None);
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
