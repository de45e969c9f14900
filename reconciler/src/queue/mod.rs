//! The work queue of a controller: each key is queued once, and never processed twice at the same time.

mod backoff;
mod delayed;
mod lanes;
mod own_write;
#[cfg(test)]
mod tests;

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use parking_lot::Mutex;
use reknit_apis::Key;
use tokio::{sync::Notify, time::Instant};

use self::{
    backoff::Backoff,
    delayed::Delayed,
    lanes::{Added, Lane, Lanes},
};
use crate::metrics::{Metrics, QueueMetrics, RunningPasses};

/// The work queue of one controller, to enqueue keys for reasons that no watch reports: the end of a probe, a message, a
/// timer. Cheap to clone. Comes from [`Builder::queue`](crate::Builder::queue).
///
/// A queued key is not added again. A key whose pass is running is queued again when that pass ends. So after a key is
/// added, a pass of it starts: as soon as this process leads the key, unless another process is known to lead it. That
/// process relies on its own watches and queue.
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
    /// Notified when a worker may find a key, an earlier due time, or the queue closed.
    changed: Notify,
}

struct State {
    lanes: Lanes,
    delayed: Delayed,
    backoff: Backoff,
    /// The own writes in flight, each with the versions of its object that the watch reported since it started, or
    /// `None` for a deletion. At most one per worker.
    pending_writes: Vec<(Arc<Key>, Vec<Option<String>>)>,
    /// The claimed keys and the time of each claim. At most one per worker.
    running: Vec<(Arc<Key>, Instant)>,
    closed: bool,
    metrics: Option<QueueMetrics>,
}

impl Queue {
    pub(crate) fn new() -> Self {
        let state = State {
            lanes: Lanes::default(),
            delayed: Delayed::default(),
            backoff: Backoff::new(Instant::now()),
            pending_writes: Vec::new(),
            running: Vec::new(),
            closed: false,
            metrics: None,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() }))
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

    /// Enqueues the key of an object that changed to this version, or `None` if it was deleted. During an
    /// [own write](Self::suppressing_echo) the change may be its echo, which is decided when the answer arrives.
    pub(crate) fn add_changed(&self, key: Key, version: Option<&str>) {
        let mut state = self.0.state.lock();
        match state.pending_writes.iter_mut().find(|(written, _)| **written == key) {
            Some((_, reported)) => reported.push(version.map(str::to_owned)),
            None => {
                drop(state);
                self.add(key);
            }
        }
    }

    /// Counts under this name from now on.
    pub(crate) fn measure(&self, name: &str, metrics: &Metrics) {
        let shared: Arc<dyn RunningPasses> = self.0.clone();
        let metrics = metrics.queue(name, Arc::downgrade(&shared));
        let mut state = self.0.state.lock();
        metrics.depth.set(state.depth());
        state.metrics = Some(metrics);
    }

    /// The next key in turn, as soon as there is one; none once the queue is closed. Safe to drop and call again.
    pub(crate) async fn next(&self) -> Option<Claimed> {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
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
                () = changed => {}
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
        self.0.changed.notify_waiters();
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
            self.0.changed.notify_one();
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
            self.0.changed.notify_waiters();
        }
    }

    /// The keys that are claimed now, and since when.
    pub(crate) fn running(&self) -> Vec<(Key, Instant)> {
        self.0.state.lock().running.iter().map(|(key, since)| (Key::clone(key), *since)).collect()
    }

    fn done(&self, key: &Arc<Key>) {
        let again = self.0.state.lock().done(key);
        if again {
            self.0.changed.notify_one();
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
        self.running.push((key.clone(), Instant::now()));
        self.show_depth();
        Some(key)
    }

    /// True where the key waits again.
    fn done(&mut self, key: &Arc<Key>) -> bool {
        if let Some(at) = self.running.iter().position(|(claimed, _)| claimed == key) {
            let (_, since) = self.running.swap_remove(at);
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
            .field("working", &state.running.len())
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}

impl RunningPasses for Shared {
    fn ages(&self) -> Vec<Duration> {
        self.state.lock().running.iter().map(|(_, since)| since.elapsed()).collect()
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
