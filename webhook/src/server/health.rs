//! For how long the code of Kinds has been running.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

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

impl Health {
    pub(crate) fn new(running: &Running, answer: Duration) -> Self {
        Self { running: running.clone(), patience: answer.saturating_mul(PATIENCE) }
    }

    /// For how long the oldest piece of work has been running, where that is more than three times
    /// [`Limits::answer`](crate::Limits::answer). Its request was given up long ago, and code that does not return keeps its
    /// share of [`Limits::work`](crate::Limits::work): nothing but the end of the process gives it back.
    pub fn stuck(&self) -> Option<Duration> {
        self.running.oldest().filter(|age| *age > self.patience)
    }

    pub(crate) fn begin(&self) -> Piece {
        self.running.begin()
    }
}

/// The work that has begun and not ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running(Arc<Mutex<Begun>>);

#[derive(Debug, Default)]
struct Begun {
    tickets: u64,
    /// By ticket, so the oldest is the first.
    since: BTreeMap<u64, Instant>,
}

impl Running {
    fn begin(&self) -> Piece {
        let mut begun = self.0.lock();
        begun.tickets += 1;
        let ticket = begun.tickets;
        begun.since.insert(ticket, Instant::now());
        Piece { running: self.clone(), ticket }
    }

    fn oldest(&self) -> Option<Duration> {
        self.0.lock().since.first_key_value().map(|(_, since)| since.elapsed())
    }
}

/// A piece of work, which ends when this is dropped.
#[must_use]
pub(crate) struct Piece {
    running: Running,
    ticket: u64,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.running.0.lock().since.remove(&self.ticket);
    }
}
