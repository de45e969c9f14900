//! The health of a webhook: code of Kinds that does not return.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::webhook::Webhook;

/// The multiple of the time for an answer after which code counts as stuck.
const PATIENCE: u32 = 3;

/// The health of a webhook, while it is served or before. Cheap to clone.
///
/// ```
/// use reknit_webhook::{Health, Webhook};
///
/// fn is_well(health: &Health) -> bool {
///     health.stuck().is_none()
/// }
///
/// let webhook = Webhook::new("demo.reknit.dev");
/// assert!(is_well(&webhook.health()));
/// ```
#[derive(Clone, Debug)]
pub struct Health {
    running: Running,
    patience: Duration,
}

impl Webhook {
    /// The health of the webhook, for probes of the process: `reknit_sharedmain::Main` reports it at `/health`. Has to be called
    /// after [`limits`](Self::limits).
    pub fn health(&self) -> Health {
        Health { running: self.running.clone(), patience: self.limits.answer.saturating_mul(PATIENCE) }
    }
}

impl Health {
    /// The age of the oldest running code of a Kind, if that exceeds three times [`Limits::answer`](crate::Limits::answer). Its
    /// request has failed long ago, but the code keeps its share of [`Limits::work`](crate::Limits::work) until the process
    /// ends.
    pub fn stuck(&self) -> Option<Duration> {
        let oldest = self.running.lock().iter().find_map(Weak::upgrade)?;
        Some(oldest.elapsed()).filter(|age| *age > self.patience)
    }

    /// Records the start of code that runs until the returned value is dropped.
    pub(crate) fn begin(&self) -> Arc<Instant> {
        let (since, mut running) = (Arc::new(Instant::now()), self.running.lock());
        running.retain(|since| since.strong_count() > 0);
        running.push(Arc::downgrade(&since));
        since
    }
}

/// The start times of running code, in order.
pub(crate) type Running = Arc<Mutex<Vec<Weak<Instant>>>>;
