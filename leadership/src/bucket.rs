//! The buckets of one controller in this process: who leads each, and until when.
//!
//! A bucket is written by its elector, through a [`BucketWriter`], and read by the controller, through
//! [`Leadership`](crate::Leadership). This is the life of a bucket:
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | `Unknown`, `Other` | `Led`, in a new term | [`lead`](BucketWriter::lead): the Lease was acquired |
//! | `Led`, `Draining` | the same, with a later deadline | [`lead`](BucketWriter::lead): the Lease was renewed |
//! | `Led` | `Draining` | [`drain`](BucketWriter::drain): another member has to lead |
//! | `Draining` | `Other` | [`hand_over`](BucketWriter::hand_over): the running passes ended, and the Lease is released next |
//! | `Led`, `Draining` | `Unknown` | the deadline, or [`resign`](BucketWriter::resign): the process stops |
//! | any | `Other` | [`follow`](BucketWriter::follow): another process holds the Lease |
//!
//! A leading pass starts only while its bucket is `Led`, or `Draining` if the next leader may not know of its work. It is
//! dropped when the term ends in which it started. Observing passes are not counted: a handover does not wait for them.

use std::{future::poll_fn, mem, pin::pin, sync::Arc, task::Poll};

use k8s_openapi::jiff::Timestamp;
use reknit_apis::Key;
use reknit_injection::internal::{Term, now, sleep_until_optional, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{identity::Identity, moment::Moment, ring::Ring};

/// The leader of a bucket, as this process knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketState {
    /// No leader is known.
    Unknown {
        /// True if this process was the last known leader.
        was_led: bool,
    },
    /// This process leads until the deadline, which each renewal moves. `None`: it always leads.
    Led {
        /// The deadline of the term.
        until: Option<Instant>,
    },
    /// This process leads, but hands the bucket over: running passes end, and no new one starts.
    Draining {
        /// The deadline of the term.
        until: Option<Instant>,
    },
    /// Another process leads, or is about to, since this one has handed the bucket over.
    Other,
}

impl BucketState {
    /// The deadline of this process's term, even if it has passed.
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Led { until } | Self::Draining { until } => until,
            Self::Unknown { .. } | Self::Other => None,
        }
    }

    fn is_led(self) -> bool {
        matches!(self, Self::Led { .. } | Self::Draining { .. })
    }
}

/// A bucket of a controller's keys.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The state as last written. Its deadline may have passed: [`state`](Self::state) checks the clock.
    written: BucketState,
    /// The time at which the deadline was set.
    renewed: Moment,
    /// The number of terms in which this process has led the bucket, including the current one.
    terms: u64,
    /// The time at which the last of them began.
    began: Instant,
    /// The number of running passes of the bucket's keys.
    passes: usize,
    /// The reason why the last attempt to acquire or renew the lease failed. `None` if it succeeded.
    failure: Option<String>,
    /// The time at which this process last released the Lease.
    pub(crate) released: Option<Instant>,
    /// The time at which this process last gained the bucket or handed it over.
    pub(crate) last_handover: Option<Timestamp>,
}

impl Bucket {
    fn new(state: BucketState) -> Self {
        Self {
            written: state,
            renewed: Moment::now(),
            terms: 0,
            began: Instant::now(),
            passes: 0,
            failure: None,
            released: None,
            last_handover: None,
        }
    }

    /// The state at this moment.
    pub(crate) fn state(&self) -> BucketState {
        if self.has_expired() { BucketState::Unknown { was_led: true } } else { self.written }
    }

    fn has_expired(&self) -> bool {
        let deadline = self.written.deadline();
        deadline.is_some_and(|deadline| deadline <= Instant::now() + self.renewed.suspended_since())
    }

    /// The number of the term in which this process leads the bucket, if it does.
    pub(crate) fn term(&self) -> Option<u64> {
        self.state().is_led().then_some(self.terms)
    }

    /// Returns the reason why the leader is unknown. `None` if it is known, or if no attempt has failed.
    pub(crate) fn reason_unknown(&self) -> Option<&str> {
        self.failure.as_deref().filter(|_| matches!(self.state(), BucketState::Unknown { .. }))
    }

    /// Replaces the state in which this process leads, also one whose deadline has passed and that
    /// [`expire`](BucketWriter::expire) has not replaced yet. The term ends, unless the next state is `Draining`. Returns
    /// true if there was a term.
    fn replace_if_led(&mut self, next: BucketState) -> bool {
        let ends = self.written.is_led();
        if ends {
            self.written = next;
        }
        ends
    }
}

/// The buckets of one controller, by index. Clones share the states.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    ring: Arc<Ring>,
    names: Arc<[Arc<str>]>,
    states: Arc<watch::Sender<Vec<Bucket>>>,
}

impl Buckets {
    /// Creates buckets in these states. A bucket has the name of its Lease.
    pub(crate) fn new(names: Vec<Arc<str>>, state: impl Fn(usize) -> BucketState) -> Self {
        let ring = Ring::new(names.iter().map(|name| &**name));
        let states = (0..names.len()).map(|index| Bucket::new(state(index))).collect();
        Self { ring: Arc::new(ring), names: names.into(), states: Arc::new(watch::Sender::new(states)) }
    }

    /// Creates buckets without a known leader.
    pub(crate) fn unknown(names: Vec<Arc<str>>) -> Self {
        Self::new(names, |_| BucketState::Unknown { was_led: false })
    }

    /// Creates the writer of each bucket.
    pub(crate) fn writers(&self, identity: &Identity) -> Vec<BucketWriter> {
        let writer = |index| BucketWriter { buckets: self.clone(), index, identity: identity.clone() };
        (0..self.names.len()).map(writer).collect()
    }

    pub(crate) fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// The buckets at this moment. They must not be written while the result is held.
    pub(crate) fn read(&self) -> watch::Ref<'_, Vec<Bucket>> {
        self.states.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Vec<Bucket>> {
        self.states.subscribe()
    }

    /// Returns true if the bucket of this name owns the key.
    pub(crate) fn is_owner(&self, name: &str, key: &Key) -> bool {
        self.ring.owner(key) == name
    }

    /// The index of the bucket that owns the key.
    pub(crate) fn owner(&self, key: &Key) -> usize {
        let owner = self.ring.owner(key);
        self.names.iter().position(|name| **name == *owner).unwrap_or_default()
    }

    /// Starts a pass of the key. Returns `None` unless the bucket that owns the key is `Led`.
    pub(crate) fn start_pass(&self, key: &Key) -> Option<LedPass> {
        self.start_pass_if(key, |state| matches!(state, BucketState::Led { .. }))
    }

    /// Starts a pass whose work the next leader may not know of, such as that of a deletion which its list lacks. Returns
    /// `None` unless the bucket that owns the key is `Draining`.
    pub(crate) fn start_pass_during_handover(&self, key: &Key) -> Option<LedPass> {
        self.start_pass_if(key, |state| matches!(state, BucketState::Draining { .. }))
    }

    fn start_pass_if(&self, key: &Key, may_start: impl Fn(BucketState) -> bool) -> Option<LedPass> {
        let (index, mut term) = (self.owner(key), None);
        self.modify(index, |bucket| {
            if may_start(bucket.state()) {
                bucket.passes += 1;
                term = Some((bucket.terms, bucket.began));
            }
            false
        });
        let (number, began) = term?;
        Some(LedPass(Some(BucketTerm { buckets: self.clone(), index, number, began })))
    }

    /// Changes a bucket. Notifies the readers if `change` returns true, and returns its result.
    fn modify(&self, index: usize, change: impl FnOnce(&mut Bucket) -> bool) -> bool {
        self.states.send_if_modified(|buckets| buckets.get_mut(index).is_some_and(change))
    }
}

/// A running pass of a key that this process leads. It counts until it is dropped: a bucket is handed over after its passes have ended.
#[derive(Debug)]
pub struct LedPass(Option<BucketTerm>);

/// A term in which this process leads a bucket.
#[derive(Clone, Debug)]
struct BucketTerm {
    buckets: Buckets,
    index: usize,
    number: u64,
    began: Instant,
}

impl BucketTerm {
    /// Returns true if the term has ended at this moment.
    fn has_ended(&self) -> bool {
        self.buckets.read()[self.index].term() != Some(self.number)
    }

    /// Waits until the term ends. Timers can be late.
    async fn ended(&self) {
        let mut buckets = self.buckets.subscribe();
        loop {
            // A renewal moves the deadline without a notification, so it is read again when it is reached.
            let deadline = buckets.borrow_and_update()[self.index].written.deadline();
            if self.has_ended() {
                return;
            }
            tokio::select! {
                biased;
                _ = buckets.changed() => {}
                () = sleep_until_optional(deadline) => {}
            }
        }
    }
}

impl LedPass {
    /// Creates a pass of a key that this process always leads.
    pub(crate) fn always_led() -> Self {
        Self(None)
    }

    /// Runs the pass in the term in which it started. Returns `None` if the term has ended, even if the pass ended too.
    pub async fn run<T>(&self, pass: impl Future<Output = T>) -> Option<T> {
        let Some(term) = &self.0 else { return Some(pass.await) };
        let own_term = term.clone();
        let scoped = Term::new(term.began, move || own_term.has_ended()).scope(pass);
        tokio::select! {
            biased;
            () = self.lost() => None,
            result = scoped => (!term.has_ended()).then_some(result),
        }
    }

    /// Resolves when the term ends in which the pass started, and compares the clock at each poll: after a process was
    /// paused, a response may wake the pass before the timer fires. The pass must be dropped then.
    pub async fn lost(&self) {
        let Some(term) = &self.0 else { return std::future::pending().await };
        let mut ended = pin!(term.ended());
        poll_fn(|cx| if term.has_ended() { Poll::Ready(()) } else { ended.as_mut().poll(cx) }).await;
    }
}

impl Drop for LedPass {
    fn drop(&mut self) {
        let Some(BucketTerm { buckets, index, .. }) = &self.0 else { return };
        buckets.modify(*index, |bucket| {
            bucket.passes -= 1;
            bucket.passes == 0 && !matches!(bucket.written, BucketState::Led { .. })
        });
    }
}

/// Writes the state of one bucket and logs each change. Owned by the bucket's elector.
#[derive(Clone, Debug)]
pub struct BucketWriter {
    buckets: Buckets,
    index: usize,
    identity: Identity,
}

impl BucketWriter {
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The name of the bucket and of its Lease.
    pub(crate) fn lease(&self) -> &str {
        &self.buckets.names[self.index]
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns true while this process leads the bucket, also while it hands the bucket over.
    pub(crate) fn is_in_term(&self) -> bool {
        self.buckets.read()[self.index].term().is_some()
    }

    /// The deadline of the term, if this process leads.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.buckets.read()[self.index].state().deadline()
    }

    /// Starts a term that ends at this deadline, or moves the deadline of the current term. Readers are notified of new
    /// terms, but not of renewals. `reason` says why the Lease could be acquired.
    pub fn lead(&self, until: Instant, reason: &str) {
        let until = Some(until);
        let is_new = self.modify(|bucket| {
            let is_new = bucket.term().is_none();
            bucket.written = match bucket.state() {
                BucketState::Draining { .. } => BucketState::Draining { until },
                _ => BucketState::Led { until },
            };
            bucket.renewed = Moment::now();
            if is_new {
                bucket.terms += 1;
                bucket.began = Instant::now();
                bucket.last_handover = Some(now());
            }
            is_new
        });
        if is_new {
            info!(lease = self.lease(), identity = %self.identity, reason, "became leader");
        }
    }

    /// Lets no further pass of the bucket's keys start in this term.
    pub fn drain(&self) {
        self.modify(|bucket| {
            let until = bucket.written.deadline();
            bucket.replace_if_led(BucketState::Draining { until })
        });
    }

    /// Waits until no pass of the bucket's keys runs.
    pub(crate) async fn drained(&self) {
        self.buckets.subscribe().wait_for(|buckets| buckets[self.index].passes == 0).await.ok();
    }

    /// Ends the term so that another member can lead.
    pub(crate) fn hand_over(&self, reason: &str) {
        if self.is_in_term() {
            self.stop_leading(BucketState::Other, reason);
        }
    }

    /// Ends the term at the end of the process.
    pub fn resign(&self) {
        self.stop_leading(BucketState::Unknown { was_led: true }, "the process stops");
    }

    fn stop_leading(&self, next: BucketState, reason: &str) {
        let stops = self.modify(|bucket| {
            let stops = bucket.replace_if_led(next);
            if stops {
                bucket.last_handover = Some(now());
            }
            stops
        });
        if stops {
            info!(lease = self.lease(), identity = %self.identity, reason, "handed over");
        }
    }

    /// Records why an attempt to acquire or renew the lease failed, or that it did not.
    pub(crate) fn record_attempt(&self, failure: Option<String>) {
        self.modify(|bucket| {
            bucket.failure = failure;
            false
        });
    }

    /// Records that this process has released the Lease. The watch of Leases may report this later.
    pub(crate) fn record_release(&self) {
        self.modify(|bucket| {
            bucket.released = Some(Instant::now());
            false
        });
    }

    /// Records that this other process holds the Lease.
    pub fn follow(&self, holder: &str) {
        let mut was_led = false;
        let is_new = self.modify(|bucket| {
            let before = mem::replace(&mut bucket.written, BucketState::Other);
            was_led = before.is_led();
            before != BucketState::Other
        });
        if was_led {
            self.warn_lost("another process holds the lease", Some(holder));
        } else if is_new {
            info!(lease = self.lease(), identity = %self.identity, holder, "lease is held by another process");
        }
    }

    /// Ends each term at its deadline, independently of the attempts to renew. Never returns.
    pub(crate) async fn expire_terms(self) {
        let mut buckets = self.buckets.subscribe();
        loop {
            let deadline = buckets.borrow_and_update()[self.index].written.deadline();
            tokio::select! {
                biased;
                () = sleep_until_optional(deadline) => self.expire(),
                _ = buckets.changed() => {}
            }
        }
    }

    fn expire(&self) {
        let next = BucketState::Unknown { was_led: true };
        if self.modify(|bucket| bucket.has_expired() && bucket.replace_if_led(next)) {
            self.warn_lost("the lease was not renewed before the renew deadline", None);
        }
    }

    fn warn_lost(&self, reason: &str, holder: Option<&str>) {
        warn!(lease = self.lease(), identity = %self.identity, reason, holder, "lost leadership");
    }

    fn modify(&self, change: impl FnOnce(&mut Bucket) -> bool) -> bool {
        self.buckets.modify(self.index, change)
    }
}
