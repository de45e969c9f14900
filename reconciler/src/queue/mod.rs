//! The keys that wait for a pass: each once, never two passes of one key at a time.

mod delayed;
mod echoes;
mod lanes;
#[cfg(test)]
mod tests;

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use parking_lot::Mutex;
use reknit_apis::Key;
use tokio::{sync::Notify, time::Instant};

pub(crate) use self::lanes::Lane;
use self::{
    delayed::Delayed,
    echoes::Echoes,
    lanes::{Added, Lanes},
};
use crate::{
    backoff::Backoff,
    metrics::{Metrics, QueueMetrics, Works},
};

/// Wakes the keys of one controller, from wherever something happens that no watch tells: a probe that ended, a
/// message, a timer. Cheap to clone; comes from [`Builder::queue`](crate::Builder::queue).
///
/// A key that waits is not added again; one whose pass runs is looked at once more when that pass has ended. So
/// whoever adds a key knows that a pass begins afterwards: once this process leads the key, unless another is known to.
/// That one looks at what it is told of itself.
///
/// ```
/// use reknit_reconciler::{Key, Queue};
///
/// fn probe_ended(queue: &Queue) {
///     queue.add(Key::new("default", "web"));
/// }
/// ```
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Told whenever a claimer may find something new: a key, an earlier time, the end.
    news: Notify,
}

struct State {
    lanes: Lanes,
    delayed: Delayed,
    backoff: Backoff,
    echoes: Echoes,
    /// The claimed keys, and since when: as many as there are workers.
    working: Vec<(Arc<Key>, Instant)>,
    closed: bool,
    metrics: Option<QueueMetrics>,
}

impl Queue {
    pub(crate) fn new() -> Self {
        let state = State {
            lanes: Lanes::default(),
            delayed: Delayed::default(),
            backoff: Backoff::new(Instant::now()),
            echoes: Echoes::default(),
            working: Vec::new(),
            closed: false,
            metrics: None,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), news: Notify::new() }))
    }

    /// Wakes a key.
    pub fn add(&self, key: Key) {
        self.add_to(Lane::Fast, key);
    }

    /// Wakes a key when there is nothing more urgent: a key that something happened to goes first, but for one
    /// turn in ten.
    pub fn add_slow(&self, key: Key) {
        self.add_to(Lane::Slow, key);
    }

    /// Wakes a key after this long. Of several such times the earliest counts.
    pub fn add_after(&self, key: Key, wait: Duration) {
        self.add_at(Arc::new(key), wait);
    }

    /// Wakes a key whose own object changed: it has this version now, or none where it is gone. What is told while a write
    /// [ends the pass](Self::concluding) of the key may be its echo: whether it is shows when the answer is there.
    pub(crate) fn changed_to(&self, key: Key, version: Option<&str>) {
        if !self.0.state.lock().echoes.note(&key, version) {
            self.add(key);
        }
    }

    /// Counts under this name from now on.
    pub(crate) fn measure(&self, name: &str, metrics: &Metrics) {
        let shared: Arc<dyn Works> = self.0.clone();
        let metrics = metrics.queue(name, Arc::downgrade(&shared));
        let mut state = self.0.state.lock();
        metrics.depth.set(state.depth());
        state.metrics = Some(metrics);
    }

    /// The next key in turn, as soon as there is one; none once the queue is closed. Safe to drop and call again.
    pub(crate) async fn next(&self) -> Option<Claimed> {
        loop {
            let mut news = std::pin::pin!(self.0.news.notified());
            news.as_mut().enable();
            let due = {
                let mut state = self.0.state.lock();
                if state.closed {
                    return None;
                }
                state.add_what_is_due();
                if let Some(key) = state.claim() {
                    return Some(Claimed { key, queue: self.clone() });
                }
                state.delayed.next_due()
            };
            tokio::select! {
                () = news => {}
                () = reached(due) => {}
            }
        }
    }

    /// Adds a key that failed, after its backoff and not faster than all keys together may be retried, but after no more
    /// than `at_most`.
    pub(crate) fn retry(&self, claimed: &Claimed, at_most: Option<Duration>) {
        let wait = {
            let mut state = self.0.state.lock();
            if let Some(metrics) = &state.metrics {
                metrics.retries.inc();
            }
            state.backoff.failed(&claimed.key, at_most, Instant::now())
        };
        self.add_at(claimed.key.clone(), wait);
    }

    /// Forgets how often the key failed.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.state.lock().backoff.forget(key);
    }

    /// Hands out no more keys, takes none, and forgets those that wait.
    pub(crate) fn close(&self) {
        self.0.state.lock().close();
        self.0.news.notify_waiters();
    }

    /// Takes the keys that wait now, in order of name.
    pub(crate) fn take_all(&self) -> Vec<Key> {
        let mut state = self.0.state.lock();
        state.add_what_is_due();
        let mut keys: Vec<_> = state.lanes.take_all().into_iter().map(Arc::unwrap_or_clone).collect();
        state.show_depth();
        keys.sort();
        keys
    }

    fn add_to(&self, lane: Lane, key: Key) {
        let waits = self.0.state.lock().add(Arc::new(key), lane);
        if waits {
            self.0.news.notify_one();
        }
    }

    fn add_at(&self, key: Arc<Key>, wait: Duration) {
        let now = Instant::now();
        let Some(due) = now.checked_add(wait) else { return }; // longer than any clock counts
        let sooner = {
            let mut state = self.0.state.lock();
            !state.closed && state.delayed.add(key, due)
        };
        if sooner {
            self.0.news.notify_waiters();
        }
    }

    /// The keys that are claimed now, and since when.
    pub(crate) fn working(&self) -> Vec<(Key, Instant)> {
        self.0.state.lock().working.iter().map(|(key, since)| (Key::clone(key), *since)).collect()
    }

    fn done(&self, key: &Arc<Key>) {
        let again = self.0.state.lock().done(key);
        if again {
            self.0.news.notify_one();
        }
    }
}

impl State {
    /// True where a key waits that did not before.
    fn add(&mut self, key: Arc<Key>, lane: Lane) -> bool {
        if self.closed {
            return false;
        }
        let added = self.lanes.add(key, lane, Instant::now());
        if let Some(metrics) = self.metrics.as_ref().filter(|_| added != Added::Known) {
            metrics.adds.inc();
        }
        self.show_depth();
        added == Added::Waits
    }

    fn close(&mut self) {
        self.closed = true;
        self.lanes.take_all();
        self.delayed = Delayed::default();
        self.show_depth();
    }

    fn add_what_is_due(&mut self) {
        let now = Instant::now();
        while let Some(key) = self.delayed.pop_due(now) {
            self.add(key, Lane::Fast);
        }
    }

    fn claim(&mut self) -> Option<Arc<Key>> {
        let (key, since) = self.lanes.claim()?;
        if let Some(metrics) = &self.metrics {
            metrics.queue_duration.observe(since.elapsed().as_secs_f64());
        }
        self.working.push((key.clone(), Instant::now()));
        self.show_depth();
        Some(key)
    }

    /// True where the key waits again.
    fn done(&mut self, key: &Arc<Key>) -> bool {
        if let Some(at) = self.working.iter().position(|(claimed, _)| claimed == key) {
            let (_, since) = self.working.swap_remove(at);
            if let Some(metrics) = &self.metrics {
                metrics.work_duration.observe(since.elapsed().as_secs_f64());
            }
        }
        let again = self.lanes.done(key);
        self.show_depth();
        again
    }

    fn show_depth(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.depth.set(self.depth());
        }
    }

    fn depth(&self) -> i64 {
        i64::try_from(self.lanes.len()).unwrap_or(i64::MAX)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_struct("Queue")
            .field("waiting", &state.lanes.len())
            .field("working", &state.working.len())
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}

impl Works for Shared {
    fn ages(&self) -> Vec<Duration> {
        self.state.lock().working.iter().map(|(_, since)| since.elapsed()).collect()
    }
}

/// A key whose pass may run: nobody else is given it until this is dropped.
pub(crate) struct Claimed {
    key: Arc<Key>,
    queue: Queue,
}

impl Deref for Claimed {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.key
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(key = %self.key, "a pass panicked when it was dropped: its key is retried");
            self.queue.retry(self, None);
        }
        self.queue.done(&self.key);
    }
}

async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
