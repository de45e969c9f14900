//! The health of a controller, for the probes of the process.

use std::{sync::Arc, time::Duration};

use reknit_apis::Key;
use reknit_injection::InformerHandle;

use super::Parts;
use crate::{
    Queue,
    inspect::{Inspect, ObjectState, Related},
    metrics::PassMetrics,
    queue::{KeyState, QueueState},
};

/// The health of a controller, which can be read while it runs. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use reknit_reconciler::Health;
///
/// fn is_well(health: &Health) -> bool {
///     health.is_synced() && health.stuck_passes(Duration::from_secs(600)).is_empty()
/// }
/// ```
#[derive(Clone)]
pub struct Health {
    name: Arc<str>,
    informers: Arc<[Arc<dyn InformerHandle>]>,
    queue: Queue,
    metrics: PassMetrics,
    slow_after: Duration,
    resource: String,
    paused_by: Option<Arc<str>>,
    inspect: Arc<Inspect>,
}

/// A key whose pass is running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPass {
    /// The key.
    pub key: Key,
    /// The time since the pass started.
    pub age: Duration,
}

impl Health {
    pub(super) fn new(parts: &Parts, metrics: &PassMetrics) -> Self {
        Self {
            name: (*parts.name).into(),
            informers: parts.informers.clone().into(),
            queue: parts.queue.clone(),
            metrics: metrics.clone(),
            slow_after: parts.limits.slow_after,
            resource: parts.resource.clone(),
            paused_by: parts.paused_by.clone(),
            inspect: parts.inspect.clone(),
        }
    }

    /// The controller's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The informers whose first list the controller waits for.
    pub fn informers(&self) -> &[Arc<dyn InformerHandle>] {
        &self.informers
    }

    /// Returns true if each of the controller's [informers](Self::informers) has received its first list.
    pub fn is_synced(&self) -> bool {
        self.informers.iter().all(|informer| informer.is_synced())
    }

    /// The lengths of the queue.
    #[doc(hidden)]
    pub fn queue(&self) -> QueueState {
        self.queue.state()
    }

    /// The states of the keys for which `is_wanted` returns true that run, wait, or have failed, at most this number of each
    /// state.
    #[doc(hidden)]
    pub fn key_states(&self, limit: usize, is_wanted: impl Fn(&Key) -> bool) -> Vec<KeyState> {
        let failing = self.metrics.failing().first(usize::MAX);
        let failed = failing.iter().filter(|key| is_wanted(key) && !self.queue.contains(key)).take(limit);
        failed.map(KeyState::failed).chain(self.queue.key_states(limit, &is_wanted)).collect()
    }

    /// The keys whose objects are paused, at most this number.
    #[doc(hidden)]
    pub fn paused(&self, limit: usize) -> Vec<Key> {
        self.metrics.paused().first(limit)
    }

    /// The keys whose last pass failed, at most this number.
    #[doc(hidden)]
    pub fn failing(&self, limit: usize) -> Vec<Key> {
        self.metrics.failing().first(limit)
    }

    /// The resource of the Kind, such as `deployments.apps`. Empty for a controller without a Kind.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// The annotation that pauses an object. `None` if none does.
    pub fn paused_by(&self) -> Option<&str> {
        self.paused_by.as_deref()
    }

    /// The objects that the latest passes of a key have read, and the objects that its object owns.
    pub fn related(&self, key: &Key) -> Vec<Related> {
        self.inspect.related(key)
    }

    /// The state of a key's object. `None` if it is not in the cache.
    pub fn object(&self, key: &Key) -> Option<ObjectState> {
        self.inspect.object(key)
    }

    /// The running passes.
    pub fn running_passes(&self) -> Vec<RunningPass> {
        let running = self.queue.running().into_iter();
        running.map(|(key, since)| RunningPass { key, age: since.elapsed() }).collect()
    }

    /// The passes that have been running for longer than both `longer_than` and the time after which a pass of this
    /// controller is [slow](crate::Builder::slow_after).
    pub fn stuck_passes(&self, longer_than: Duration) -> Vec<RunningPass> {
        let limit = longer_than.max(self.slow_after);
        self.running_passes().into_iter().filter(|pass| pass.age > limit).collect()
    }
}
