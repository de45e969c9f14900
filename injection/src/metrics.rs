//! What informers measure: how much they hold, and how their lists and watches fare.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// The families, one label `name` each: the informer's. Names as client-go's reflectors have them, where they do.
#[derive(Clone)]
pub(crate) struct Families {
    objects: IntGaugeVec,
    bytes: IntGaugeVec,
    events: IntCounterVec,
    lists: IntCounterVec,
    watches: IntCounterVec,
    failures: IntCounterVec,
}

/// Those of one informer: looked up once, so that counting allocates nothing. Removed with it.
pub(crate) struct Meters {
    objects: IntGauge,
    bytes: IntGauge,
    pub(crate) events: IntCounter,
    pub(crate) lists: IntCounter,
    pub(crate) watches: IntCounter,
    pub(crate) failures: IntCounter,
    name: String,
    families: Families,
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
        Meters {
            objects: self.objects.with_label_values(&[name]),
            bytes: self.bytes.with_label_values(&[name]),
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
        self.objects.set(i64::try_from(objects).unwrap_or(i64::MAX));
        self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

impl Drop for Meters {
    fn drop(&mut self) {
        let labels = &[self.name.as_str()];
        let Families { objects, bytes, events, lists, watches, failures } = &self.families;
        for gauges in [objects, bytes] {
            let _ = gauges.remove_label_values(labels);
        }
        for counters in [events, lists, watches, failures] {
            let _ = counters.remove_label_values(labels);
        }
    }
}
