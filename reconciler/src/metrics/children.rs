//! The metrics of the children that a controller applies.

use std::sync::{Arc, OnceLock};

use kube::api::ApiResource;
use prometheus::{IntCounter, IntCounterVec};

const RESULTS: [&str; 4] = ["created", "updated", "restored", "unchanged"];

/// The effect of applying a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildResult {
    Created,
    /// The applied content differs from the last one.
    Updated,
    /// Another client had changed a field that the controller sets.
    Restored,
    Unchanged,
}

/// The metrics of all children of one controller. A builder creates them before the name of the controller is known.
#[derive(Clone)]
pub(crate) struct ChildMetrics {
    family: IntCounterVec,
    dropped: IntCounterVec,
    controller: Arc<OnceLock<String>>,
}

/// The metrics of the children of one Kind, looked up with the first child.
pub(crate) struct ChildrenOfKind {
    children: ChildMetrics,
    group: String,
    resource: String,
    counters: OnceLock<Counters>,
}

struct Counters {
    results: [IntCounter; RESULTS.len()],
    /// The writes of which the API server did not store all fields.
    dropped: IntCounter,
}

impl ChildMetrics {
    pub(super) fn new(family: IntCounterVec, dropped: IntCounterVec) -> Self {
        Self { family, dropped, controller: Arc::default() }
    }

    pub(crate) fn set_controller(&self, name: &str) {
        self.controller.get_or_init(|| name.into());
    }

    pub(crate) fn of_kind(&self, kind: &ApiResource) -> ChildrenOfKind {
        let (group, resource) = (kind.group.clone(), kind.plural.clone());
        ChildrenOfKind { children: self.clone(), group, resource, counters: OnceLock::new() }
    }
}

impl ChildrenOfKind {
    pub(crate) fn record(&self, result: ChildResult) {
        self.counters().results[result as usize].inc();
    }

    /// Counts a write of which the API server did not store all fields.
    pub(crate) fn record_dropped_fields(&self) {
        self.counters().dropped.inc();
    }

    fn counters(&self) -> &Counters {
        self.counters.get_or_init(|| {
            let ChildMetrics { family, dropped, controller } = &self.children;
            let controller = controller.get().map_or("", String::as_str);
            let labels = [controller, &self.group, &self.resource];
            let of_result = |result| family.with_label_values(&[labels[0], labels[1], labels[2], result]);
            Counters { results: RESULTS.map(of_result), dropped: dropped.with_label_values(&labels) }
        })
    }
}
