//! What informers measure: how much they hold, and how their lists and watches fare.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// The families, one label `name` each: the informer's. Names as client-go's reflectors have them, where they do.
///
/// Several informers can have one name, such as a typed and a dynamic one of the same Kind, or one that is dropped
/// and its successor: they share a series, which sums them up and goes with the last of them.
#[derive(Clone)]
pub(crate) struct Families {
    objects: IntGaugeVec,
    bytes: IntGaugeVec,
    events: IntCounterVec,
    lists: IntCounterVec,
    watches: IntCounterVec,
    failures: IntCounterVec,
    /// How many informers of each name there are.
    sharing: Arc<Mutex<HashMap<String, usize>>>,
}

/// Those of one informer: looked up once, so that counting allocates nothing.
pub(crate) struct Meters {
    objects: Share,
    bytes: Share,
    pub(crate) events: IntCounter,
    pub(crate) lists: IntCounter,
    pub(crate) watches: IntCounter,
    pub(crate) failures: IntCounter,
    name: String,
    families: Families,
}

/// What one informer adds to a gauge.
struct Share {
    gauge: IntGauge,
    added: AtomicI64,
}

impl Share {
    fn of(gauge: IntGauge) -> Self {
        Self { gauge, added: AtomicI64::new(0) }
    }

    fn set(&self, value: usize) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.gauge.add(value - self.added.swap(value, Ordering::Relaxed));
    }
}

impl Families {
    /// Registered where the process's metrics are; a second Context over one registry counts in silence.
    #[expect(clippy::expect_used, reason = "names and labels are constants, and well-formed")]
    pub(crate) fn new(registry: &Registry) -> Self {
        let gauge = |name, help| IntGaugeVec::new(Opts::new(name, help), &["name"]).expect("well-formed");
        let counter = |name, help| IntCounterVec::new(Opts::new(name, help), &["name"]).expect("well-formed");
        let families = Self {
            objects: gauge("reflector_objects", "Objects that the informer holds"),
            bytes: gauge("reflector_object_bytes", "Size of these objects as compact JSON"),
            events: counter("reflector_events_total", "Watch events received"),
            lists: counter("reflector_lists_total", "Lists begun, the first and each one after a gap"),
            watches: counter("reflector_watches_total", "Watches opened"),
            failures: counter("reflector_failures_total", "Lists and watches that failed"),
            sharing: Arc::default(),
        };
        families.register(registry);
        families
    }

    fn register(&self, registry: &Registry) {
        let all: [Box<dyn prometheus::core::Collector>; 6] = [
            Box::new(self.objects.clone()),
            Box::new(self.bytes.clone()),
            Box::new(self.events.clone()),
            Box::new(self.lists.clone()),
            Box::new(self.watches.clone()),
            Box::new(self.failures.clone()),
        ];
        for family in all {
            if let Err(error) = registry.register(family) {
                tracing::debug!(%error, "informer metrics are registered already");
            }
        }
    }

    pub(crate) fn of(&self, name: &str) -> Meters {
        let mut sharing = self.sharing.lock();
        *sharing.entry(name.into()).or_default() += 1;
        Meters {
            objects: Share::of(self.objects.with_label_values(&[name])),
            bytes: Share::of(self.bytes.with_label_values(&[name])),
            events: self.events.with_label_values(&[name]),
            lists: self.lists.with_label_values(&[name]),
            watches: self.watches.with_label_values(&[name]),
            failures: self.failures.with_label_values(&[name]),
            name: name.into(),
            families: self.clone(),
        }
    }
}

impl Meters {
    pub(crate) fn changed(&self, objects: usize, bytes: usize) {
        self.objects.set(objects);
        self.bytes.set(bytes);
    }
}

impl Drop for Meters {
    fn drop(&mut self) {
        let mut sharing = self.families.sharing.lock();
        if let Some(others) = sharing.get_mut(&self.name).filter(|count| **count > 1) {
            *others -= 1;
            return self.changed(0, 0);
        }
        sharing.remove(&self.name);
        let labels = &[self.name.as_str()];
        let Families { objects, bytes, events, lists, watches, failures, .. } = &self.families;
        for gauges in [objects, bytes] {
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

    /// The gauge of objects, by name.
    fn objects(registry: &Registry) -> Vec<(String, f64)> {
        let families = registry.gather();
        let held = families.iter().filter(|family| family.name() == "reflector_objects");
        let series = held.flat_map(|family| family.get_metric());
        series.map(|m| (m.get_label()[0].value().to_owned(), m.get_gauge().get_value())).collect()
    }

    #[test]
    fn informers_of_one_name_share_a_series_until_the_last_of_them_goes() {
        let registry = Registry::new();
        let families = Families::new(&registry);
        let (typed, dynamic, other) = (families.of("pods"), families.of("pods"), families.of("nodes"));
        typed.changed(3, 300);
        dynamic.changed(5, 500);
        dynamic.changed(4, 400);
        other.changed(1, 100);
        assert_eq!(objects(&registry), [("nodes".into(), 1.0), ("pods".into(), 7.0)]);
        drop(typed);
        dynamic.lists.inc();
        assert_eq!(objects(&registry), [("nodes".into(), 1.0), ("pods".into(), 4.0)]);
        drop(dynamic);
        assert_eq!(objects(&registry), [("nodes".into(), 1.0)]);
        families.of("pods").changed(2, 200);
        drop(other);
        assert_eq!(objects(&registry), []);
    }
}
