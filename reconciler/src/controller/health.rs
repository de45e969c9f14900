//! How a controller is doing, for whoever probes the process.

use std::{sync::Arc, time::Duration};

use reknit_apis::Key;
use reknit_injection::{Feed, FeedState};

use super::Parts;
use crate::Queue;

/// A look into a controller, also while it runs. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use reknit_reconciler::Health;
///
/// fn is_well(health: &Health) -> bool {
///     health.is_synced() && health.stuck(Duration::from_secs(600)).is_empty()
/// }
/// ```
#[derive(Clone)]
pub struct Health {
    name: Arc<str>,
    feeds: Arc<[Arc<dyn Feed>]>,
    queue: Queue,
    slow_after: Duration,
}

/// A key whose pass runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Working {
    /// The key.
    pub key: Key,
    /// For how long.
    pub age: Duration,
}

impl Health {
    pub(super) fn new(parts: &Parts) -> Self {
        Self {
            name: parts.name.as_str().into(),
            feeds: parts.feeds.clone().into(),
            queue: parts.queue.clone(),
            slow_after: parts.limits.slow_after,
        }
    }

    /// The controller's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The informers whose first list it waits for.
    pub fn feeds(&self) -> &[Arc<dyn Feed>] {
        &self.feeds
    }

    /// Whether all of them have had it.
    pub fn is_synced(&self) -> bool {
        self.feeds.iter().all(|feed| matches!(feed.state(), FeedState::Synced { .. }))
    }

    /// The passes that run now.
    pub fn working(&self) -> Vec<Working> {
        let working = self.queue.running().into_iter();
        working.map(|(key, since)| Working { key, age: since.elapsed() }).collect()
    }

    /// Those that have been running for longer than this, and for longer than a pass of this controller may take
    /// before it is [slow](crate::ControllerBuilder::slow_after).
    pub fn stuck(&self, longer_than: Duration) -> Vec<Working> {
        let limit = longer_than.max(self.slow_after);
        self.working().into_iter().filter(|working| working.age > limit).collect()
    }
}
