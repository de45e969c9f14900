//! For how long the code of Kinds has been running.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::webhook::Webhook;

/// How many times as long as an answer may take code may run before it counts as stuck.
const PATIENCE: u32 = 3;

/// A look into a webhook, also while it is served. Cheap to clone.
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
    /// For how long the oldest piece of work has been running, where that is more than three times
    /// [`Limits::answer`](crate::Limits::answer). Its request was given up long ago, and code that does not return keeps its
    /// share of [`Limits::work`](crate::Limits::work): nothing but the end of the process gives it back.
    pub fn stuck(&self) -> Option<Duration> {
        let oldest = self.running.0.lock().iter().find_map(Weak::upgrade)?;
        Some(oldest.elapsed()).filter(|age| *age > self.patience)
    }

    /// Notes that code has begun to run, until the returned value is dropped.
    pub(crate) fn begin(&self) -> Arc<Instant> {
        let (since, mut running) = (Arc::new(Instant::now()), self.running.0.lock());
        running.retain(|since| since.strong_count() > 0);
        running.push(Arc::downgrade(&since));
        since
    }
}

/// The beginning of each piece of work that has not ended, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running(Arc<Mutex<Vec<Weak<Instant>>>>);
