//! The work queue of a controller: each key is queued once, and never processed twice at the same time.
//!
//! Queued keys, and failed keys that wait for a token, are served in turns by namespace. With two or more workers, the
//! controller starts one more, and once as many passes run as it has workers, a key is claimed only if no pass of its
//! namespace runs. So no namespace can occupy every worker, however many keys it has and however long their passes take.

mod backoff;
mod begin;
mod brake;
mod cause;
mod change;
mod claimed;
mod clock_jumps;
mod delayed;
mod lanes;
mod own_objects;
mod resync;
mod retries;
mod source;
mod state;
mod storms;
#[cfg(test)]
mod tests;
mod token_bucket;

use std::{borrow::Borrow, fmt, ops::RangeInclusive, sync::Arc, time::Duration};

use parking_lot::Mutex;
use reknit_apis::{Key, internal::HashSet};
use reknit_injection::{
    Clock,
    internal::{CurrentPass, Writers, clock_instant, is_test_clock, next_clock_change, sleep_until_optional},
};
use tokio::{sync::Notify, time::Instant};

pub use self::state::{KeyState, QueueState};
use self::{
    brake::Brake,
    cause::is_user_prompted,
    clock_jumps::ClockJumps,
    lanes::{AddResult, Lane, Lanes},
    own_objects::PendingWrites,
    resync::KeySources,
    retries::Retries,
    storms::Storms,
};
pub(crate) use self::{
    cause::{Cause, Causes},
    change::StateChange,
    claimed::ClaimedKey,
    delayed::{Delay, Delayed},
    source::{DeletedChild, Source, resource_of},
    storms::{InARow, Storm, StormKind},
};
use crate::metrics::{Metrics, QueueMetrics, ScrapedQueue};

/// The work queue of one controller, to enqueue keys for reasons that no watch reports: the end of a probe, a message,
/// a timer. Cheap to clone. Comes from [`Builder::queue`](crate::Builder::queue).
///
/// A queued key is not added again. A key whose pass is running is queued again when that pass ends. So each add is
/// followed by the start of a pass, once this process leads the key. If another process has led the key for two lease
/// durations by then, no pass starts here: that process has its own watches and queue.
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
    key_sources: Mutex<KeySources>,
    /// The clock of delayed keys.
    clock: Clock,
    /// Notified when a key is queued, a delayed key becomes the next to be due, or the queue is closed.
    changed: Notify,
}

struct State {
    lanes: Lanes,
    delayed: Delayed,
    clock_jumps: ClockJumps,
    retries: Retries,
    pending_writes: PendingWrites,
    writers: Writers,
    /// The keys that wait for the first list of a Kind after a prompted pass.
    prompted: HashSet<Arc<Key>>,
    brake: Option<Brake>,
    storms: Storms,
    /// The claimed keys and the time of each claim. At most one per worker.
    running: Vec<(Arc<Key>, Instant)>,
    /// The number of running passes from which on only keys of other namespaces are claimed.
    workers: usize,
    closed: bool,
    metrics: Option<QueueMetrics>,
}

impl Queue {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::of(Clock::default(), Writers::default())
    }

    /// Creates a queue whose delayed keys follow this clock. `writers` knows the changes that passes made.
    pub(crate) fn of(clock: Clock, writers: Writers) -> Self {
        let state = State {
            lanes: Lanes::default(),
            delayed: Delayed::default(),
            clock_jumps: ClockJumps::new(),
            retries: Retries::new(Instant::now()),
            pending_writes: Vec::new(),
            writers,
            prompted: HashSet::default(),
            brake: None,
            storms: Storms::default(),
            running: Vec::new(),
            workers: usize::MAX,
            closed: false,
            metrics: None,
        };
        let (state, key_sources) = (Mutex::new(state), Mutex::default());
        Self(Arc::new(Shared { state, key_sources, clock, changed: Notify::new() }))
    }

    /// Enqueues a key.
    pub fn add(&self, key: Key) {
        self.add_for(key, Cause::queue(None));
    }

    /// Enqueues a key for a reason, such as `the probe ended`, that the log lines of the pass show among the
    /// [causes](crate#causes). Only the first 200 bytes are kept.
    pub fn add_because(&self, key: Key, reason: &str) {
        self.add_for(key, Cause::queue(Some(reason)));
    }

    /// Enqueues a key in the slow lane. Keys of the fast lane go first, except for one turn in ten.
    pub fn add_slow(&self, key: Key) {
        self.add_slow_for(key, Cause::queue(None));
    }

    /// Enqueues a key for this cause.
    pub(crate) fn add_for(&self, key: Key, cause: Cause) {
        let prompted = cause.is_prompted_now();
        self.add_to(Lane::Fast, key, cause, prompted);
    }

    /// Enqueues a key for this cause. `prompted`: it continues a pass that was prompted.
    pub(crate) fn add_continuing(&self, key: Key, cause: Cause, prompted: bool) {
        self.add_to(Lane::Fast, key, cause, prompted);
    }

    /// Enqueues a key for this cause in the slow lane.
    pub(crate) fn add_slow_for(&self, key: Key, cause: Cause) {
        let prompted = cause.is_prompted_now();
        self.add_to(Lane::Slow, key, cause, prompted);
    }

    /// Enqueues a key for this cause in the slow lane. `prompted`: it continues a pass that was prompted.
    pub(crate) fn add_slow_continuing(&self, key: Key, cause: Cause, prompted: bool) {
        self.add_to(Lane::Slow, key, cause, prompted);
    }

    /// Enqueues a key after this time. The earliest of several times counts. The time is measured by the [`Clock`] of
    /// the Context, which a test can set. The time in which the machine was suspended, or by which its clock was set forward,
    /// counts too, within a minute.
    pub fn add_after(&self, key: Key, wait: Duration) {
        let (key, start, is_external) =
            (Arc::new(key), clock_instant(&self.0.clock), CurrentPass::get().is_none());
        let origin = Delay { is_external, ..Delay::prompted(is_user_prompted()) };
        self.add_delayed(key, start, wait, origin);
    }

    /// Enqueues the key of a pass after this time, which is measured from the end of the pass. If a test sets the clock,
    /// it is measured from the start: the test may set the clock as soon as it sees what the pass wrote.
    pub(crate) fn continue_after(&self, claimed: &ClaimedKey, wait: Duration) {
        let clock = &self.0.clock;
        let start = if is_test_clock(clock) { claimed.claimed_at } else { clock_instant(clock) };
        self.add_delayed(claimed.key.clone(), start, wait, Delay::prompted(claimed.causes.is_prompted()));
    }

    /// Keeps for the next pass of the key that it continues this one.
    pub(crate) fn continue_with_next(&self, claimed: &ClaimedKey) {
        if claimed.causes.is_prompted() {
            self.0.state.lock().prompted.insert(claimed.key.clone());
        }
    }

    /// Reports metrics under the name of this controller from now on. A pass that takes longer than `slow_after` is
    /// slow.
    pub(crate) fn set_metrics(&self, controller: &str, slow_after: Duration, metrics: &Metrics) {
        let shared: Arc<dyn ScrapedQueue> = self.0.clone();
        let metrics = metrics.queues.of(controller, slow_after, Arc::downgrade(&shared));
        let mut state = self.0.state.lock();
        state.metrics = Some(metrics);
        state.report_depth();
    }

    /// Sets the number of workers. Once that many passes run, a key is claimed only if no pass of its namespace runs.
    pub(crate) fn set_workers(&self, workers: usize) {
        self.0.state.lock().workers = workers;
    }

    /// Claims the next key, and waits for one if necessary. Returns `None` when the queue is closed. Cancel safe.
    pub(crate) async fn next(&self) -> Option<ClaimedKey> {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            let clock_change = next_clock_change(&self.0.clock);
            let due = {
                let mut state = self.0.state.lock();
                if state.closed {
                    return None;
                }
                state.enqueue_due(&self.0.clock);
                if let Some((key, causes)) = state.claim() {
                    let (causes, in_a_row, queue) = (Arc::new(causes), InARow::default(), self.clone());
                    let claimed_at = clock_instant(&self.0.clock);
                    return Some(ClaimedKey { key, causes, in_a_row, claimed_at, has_ended: false, queue });
                }
                state.next_due(&self.0.clock)
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = clock_change => {}
                () = sleep_until_optional(due) => {}
            }
        }
    }

    /// Enqueues a key that failed with this error, after its backoff, which `wait` limits, and within the
    /// [retry rate](retries) of the queue.
    pub(crate) fn retry(&self, claimed: &ClaimedKey, wait: RangeInclusive<Duration>, error: &str) {
        let is_next_due_earlier = {
            let mut state = self.0.state.lock();
            if state.closed {
                return;
            }
            if let Some(metrics) = &state.metrics {
                metrics.retries.inc();
            }
            state.retries.failed(&claimed.key, wait, error, claimed.causes.is_prompted(), Instant::now())
        };
        if is_next_due_earlier {
            self.0.changed.notify_waiters();
        }
    }

    /// Resets the key's backoff after a pass that succeeded, and drops its retry. If the key had failed, the success
    /// allows [more retries](retries) of other keys.
    pub(crate) fn succeeded(&self, key: &Key) {
        let is_next_due_earlier = self.0.state.lock().retries.succeeded(key, Instant::now());
        if is_next_due_earlier {
            self.0.changed.notify_waiters();
        }
    }

    /// Records that a pass for these causes has restored a field in a fight, which is no storm.
    pub(crate) fn fought(&self, key: &Key, causes: &Causes) {
        let mut state = self.0.state.lock();
        let state = &mut *state;
        state.storms.fought(key, causes, &state.writers);
    }

    /// Resets the key's backoff, and drops its retry.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.state.lock().retries.forget(key);
    }

    /// The number of failed passes of the key since its last success, without those before its retry was due.
    pub(crate) fn failures(&self, key: &Key) -> u32 {
        self.0.state.lock().retries.failures(key)
    }

    /// Drops all queued, delayed and failed keys, and the sources of keys, which may hold informers. After that, the
    /// queue neither returns nor accepts keys.
    pub(crate) fn close(&self) {
        let key_sources = std::mem::take(&mut *self.0.key_sources.lock());
        drop(key_sources);
        {
            let mut state = self.0.state.lock();
            state.closed = true;
            state.lanes.take_all();
            (state.delayed, state.prompted) = (Delayed::default(), HashSet::default());
            state.storms = Storms::default();
            state.retries.clear();
            state.report_depth();
        }
        self.0.changed.notify_waiters();
    }

    /// Removes and returns the queued keys with their causes, sorted. A delayed or failed key that is due counts as
    /// queued.
    pub(crate) fn take_all_with_causes(&self) -> Vec<(Key, Causes)> {
        let mut state = self.0.state.lock();
        state.enqueue_due(&self.0.clock);
        let taken = state.lanes.take_all().into_iter();
        let mut taken: Vec<_> = taken.map(|(key, causes)| (Arc::unwrap_or_clone(key), causes)).collect();
        taken.iter_mut().for_each(|(_, causes)| causes.find_writers(&state.writers));
        state.report_depth();
        taken.sort_by(|(key, _), (other, _)| key.cmp(other));
        taken
    }

    /// Removes and returns the queued keys, sorted.
    pub(crate) fn take_all(&self) -> Vec<Key> {
        self.take_all_with_causes().into_iter().map(|(key, _)| key).collect()
    }

    /// The claimed keys and the time of each claim.
    pub(crate) fn running(&self) -> Vec<(Key, Instant)> {
        self.0.state.lock().running.iter().map(|(key, claimed_at)| (Key::clone(key), *claimed_at)).collect()
    }

    fn add_to(&self, lane: Lane, key: Key, cause: Cause, prompted: bool) {
        let is_new = self.0.state.lock().add(key, lane, (cause, prompted));
        if is_new {
            self.0.changed.notify_one();
        }
    }

    fn add_delayed(&self, key: Arc<Key>, start: Instant, wait: Duration, origin: Delay) {
        let delay = Delay { is_long: wait >= storms::LONG_WAIT, ..origin };
        let Some(due) = start.checked_add(wait) else { return }; // beyond the range of the clock
        let is_first_due = {
            let mut state = self.0.state.lock();
            state.follow_wall_clock(&self.0.clock);
            !state.closed && state.delayed.add(key, due, delay)
        };
        if is_first_due {
            self.0.changed.notify_waiters();
        }
    }
}

impl State {
    /// Adds the key to the lane, for a cause and whether it continues a prompted pass. Returns true if the key is now
    /// queued and was not before.
    fn add(&mut self, key: impl Into<Arc<Key>> + Borrow<Key>, lane: Lane, cause: (Cause, bool)) -> bool {
        if self.closed {
            return false;
        }
        let result = self.lanes.add(key, lane, Instant::now(), cause, &self.writers);
        if let Some(metrics) = self.metrics.as_ref().filter(|_| result != AddResult::Duplicate) {
            metrics.adds.inc();
        }
        self.report_depth();
        result == AddResult::Queued
    }

    fn enqueue_due(&mut self, clock: &Clock) {
        if self.delayed.next_due().is_some() {
            self.follow_wall_clock(clock);
        }
        let (now, set_time) = (Instant::now(), clock_instant(clock));
        while let Some((key, Delay { prompted, is_external, is_long })) = self.delayed.pop_due(set_time) {
            self.add(key, Lane::Fast, (Cause::After { is_external, is_long }, prompted));
        }
        while let Some((key, cause)) = self.retries.pop_due(now) {
            self.add(key, Lane::Fast, cause);
        }
        while let Some(key) = self.storms.pop_due(now) {
            self.lanes.release_from_storm(&key, now);
        }
    }

    /// Brings the due times of delayed keys forward if the wall clock has jumped forward. A clock that a test sets is one
    /// of its own.
    fn follow_wall_clock(&mut self, clock: &Clock) {
        if !is_test_clock(clock)
            && let Some(jump) = self.clock_jumps.take()
        {
            self.delayed.bring_forward(jump);
        }
    }

    /// The time at which the next delayed, failed or held key is due, or at which to look for a jump of the wall clock. The
    /// time of delayed keys is not known if a test sets the clock.
    fn next_due(&self, clock: &Clock) -> Option<Instant> {
        let delayed = self.delayed.next_due().filter(|_| !is_test_clock(clock));
        let delayed = delayed.map(|due| due.min(Instant::now() + clock_jumps::INTERVAL));
        let brake = self.brake.as_ref().filter(|_| self.lanes.len_of(Lane::HeldByBrake) > 0);
        let released = brake.and_then(|brake| brake.next_release(Instant::now()));
        let dues = delayed.into_iter().chain(self.retries.next_due()).chain(released);
        dues.chain(self.storms.next_due()).min()
    }

    fn claim(&mut self) -> Option<(Arc<Key>, Causes)> {
        let has_no_pass = |namespace: &str| {
            self.running.iter().all(|(key, _)| key.namespace.as_deref().unwrap_or_default() != namespace)
        };
        let is_reserve = self.running.len() >= self.workers;
        let now = Instant::now();
        let releases = self.brake.as_mut().is_some_and(|brake| brake.allows(now));
        let (key, lane, queued_at, mut causes) =
            self.lanes.claim(|namespace| !is_reserve || has_no_pass(namespace), releases)?;
        causes.find_writers(&self.writers);
        if !self.prompted.is_empty() && self.prompted.remove(&key) {
            causes.set_prompted();
        }
        // The time of a held key counted when it was claimed first.
        if let Some(metrics) = self.metrics.as_mut().filter(|_| lane != Lane::HeldByBrake) {
            metrics.queue_duration.observe((now - queued_at).as_secs_f64());
        }
        self.running.push((key.clone(), now));
        self.report_depth();
        Some((key, causes))
    }

    /// Ends the claim of the key. Returns true if a waiting worker may find a key that it could not claim before, other
    /// than the one that the worker of this claim takes next.
    fn done(&mut self, key: &Arc<Key>) -> bool {
        let (was_full, now) = (self.running.len() >= self.workers, Instant::now());
        if let Some(index) = self.running.iter().position(|(claimed, _)| claimed == key) {
            let (_, claimed_at) = self.running.swap_remove(index);
            if let Some(metrics) = &self.metrics {
                metrics.work_duration.observe((now - claimed_at).as_secs_f64());
            }
        }
        self.storms.ended(key, now);
        let is_queued = self.lanes.done(key, &self.writers);
        self.report_depth();
        is_queued || (was_full && self.lanes.len() + self.lanes.len_of(Lane::HeldByBrake) > 0)
    }

    fn report_depth(&self) {
        if let Some(metrics) = &self.metrics {
            let [fast, slow] = [Lane::Fast, Lane::Slow].map(|lane| self.lanes.len_of(lane));
            metrics.set_depth([fast, slow, self.lanes.held()]);
        }
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
