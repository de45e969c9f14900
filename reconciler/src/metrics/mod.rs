//! The metrics of controllers. They have the names and labels of controller-runtime and client-go where these have the
//! same metric, and else `reknit_*`.

mod children;
mod counted_keys;
mod passes;
mod queue;

use prometheus::{Counter, IntCounterVec, IntGaugeVec, Opts, Registry};
use reknit_injection::{Context, Inject, internal::register_metric};

pub(crate) use self::{
    children::{ChildMetrics, ChildResult, ChildrenOfKind},
    passes::{PassMetrics, PassResult},
    queue::{QueueMetrics, ScrapedQueue},
};
use self::{passes::PassFamilies, queue::QueueFamilies};

/// The metrics of all controllers of one process, in its registry.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) queues: QueueFamilies,
    passes: PassFamilies,
    children: IntCounterVec,
    dropped_of_children: IntCounterVec,
    pub(crate) events_dropped: Counter,
}

impl Inject for Metrics {
    fn inject(cx: &Context) -> Self {
        Self::new(cx.metrics())
    }
}

impl Metrics {
    fn new(registry: &Registry) -> Self {
        let events_dropped = Counter::new(
            "reknit_events_dropped_total",
            "Events that were not recorded: too many waited, there were too many about one object, or the API server \
             refused them",
        );
        Self {
            queues: QueueFamilies::new(registry),
            passes: PassFamilies::new(registry),
            children: counters(
                registry,
                "reknit_children_total",
                "Children by the effect of applying them: created, updated, restored after another client changed a \
                 field that the controller sets, or unchanged",
                &["controller", "group", "resource", "result"],
            ),
            dropped_of_children: counters(
                registry,
                "reknit_child_fields_dropped_total",
                "Number of writes of children of which the API server did not store all fields",
                &["controller", "group", "resource"],
            ),
            events_dropped: register_metric(registry, events_dropped),
        }
    }

    /// The metrics of the passes of this controller.
    pub(crate) fn passes(&self, controller: &str) -> PassMetrics {
        self.passes.of(controller)
    }

    /// The metrics of the children of a controller, whose name is set later.
    pub(crate) fn children(&self) -> ChildMetrics {
        ChildMetrics::new(self.children.clone(), self.dropped_of_children.clone())
    }
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    register_metric(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    register_metric(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

/// Reads metrics in tests.
#[cfg(test)]
pub(crate) mod testing {
    use prometheus::Registry;

    /// The value of the series of this name that has these labels; `None` if there is none.
    pub(crate) fn value(registry: &Registry, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let families = registry.gather();
        let family = families.iter().find(|family| family.name() == name)?;
        let has_label = |metric: &&prometheus::proto::Metric| {
            labels.iter().all(|(name, value)| {
                metric.get_label().iter().any(|label| label.name() == *name && label.value() == *value)
            })
        };
        let metric = family.get_metric().iter().find(has_label)?;
        let count = metric.get_histogram().get_sample_count();
        Some(metric.get_counter().get_value() + metric.get_gauge().get_value() + count as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{testing::value, *};
    use crate::Outcome;

    #[test]
    fn only_the_first_of_two_contexts_on_one_registry_is_exported() {
        let registry = Registry::new();
        let [first, second] = [(); 2].map(|()| Metrics::new(&registry));
        first.passes("a").record_pass(&Ok(Outcome::done()), Duration::ZERO);
        second.passes("b").record_pass(&Ok(Outcome::done()), Duration::ZERO);
        let passes = |controller| {
            let labels = [("controller", controller), ("result", "success")];
            value(&registry, "controller_runtime_reconcile_total", &labels)
        };
        assert_eq!((passes("a"), passes("b")), (Some(1.0), None));
    }
}
