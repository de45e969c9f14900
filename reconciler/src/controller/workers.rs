//! Runs the workers of a controller, from the first list to the last pass.
//!
//! A worker claims a key, and [holds](Controller::begin_or_hold) or [processes](Controller::process_claimed) it. Leadership tells
//! whether this process leads the key. [`Controller::run_pass`] adds the span, the metrics and the log line to the pass of the
//! [driver](crate::driver::Driver), which finds the object and runs the role of the reconciler that fits.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use reknit_apis::Key;
use reknit_injection::{
    Shutdown,
    internal::{CurrentPass, jittered},
};
use reknit_leadership::{
    Leadership,
    internal::{BucketState, LedPass},
};
use tokio::task::JoinSet;

use super::Controller;
use crate::{
    Outcome, Result,
    driver::PassMode,
    outcome::Next,
    queue::{Cause, ClaimedKey},
};

/// The number of lease durations for which a key is kept while another process leads it. A leader that is cut off from the
/// API server learns of a deletion minutes later, and its passes may fail until it has lost the Lease.
const KEPT_LEASES: u32 = 10;

/// The parameters of running a controller.
#[derive(Clone)]
pub struct Run {
    /// The keys that this process leads.
    pub leadership: Leadership,
    /// The signal to stop.
    pub stop: Shutdown,
    /// The time that running passes may take after the stop.
    pub drain: Duration,
    /// The number of workers. `None`: the number set by the controller.
    pub workers: Option<usize>,
}

/// The result of running a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// The number of passes that were still running at the end and were dropped.
    pub dropped: usize,
}

impl Controller {
    /// Waits for the first list of each informer, then processes keys until the shutdown. Then it claims no more keys,
    /// waits for the running passes, and cancels those that exceed the drain time. A shutdown before the first lists
    /// ends the run at once.
    ///
    /// The caller starts the informers. Dropping the future drops every pass at once.
    #[doc(hidden)]
    pub async fn run(self, run: Run) -> Drained {
        let Run { leadership, stop, drain, workers } = run;
        tokio::select! {
            biased;
            () = stop.wait() => return Drained::default(),
            () = async { self.wait_until_synced().await; self.run_on_synced().await } => {}
        }
        let workers = workers.unwrap_or(self.parts.workers).max(1);
        tracing::info!("knative.dev/controller" = &*self.parts.name, workers, "the controller starts");
        let controller = Arc::new(self);
        let mut tasks = JoinSet::new();
        controller.parts.queue.set_workers(workers);
        let reserve = usize::from(workers > 1);
        controller.metrics.set_workers(workers + reserve);
        for _ in 0..workers + reserve {
            tasks.spawn(controller.clone().run_worker(leadership.clone()));
        }
        let mut leadership_changes = pin!(controller.follow_leadership(leadership.clone()));
        tokio::select! {
            biased;
            // Only this ends the run: the others never resolve.
            () = stop.wait() => {}
            () = &mut leadership_changes => {}
            () = controller.resync() => {}
            () = controller.expire_postponed(leadership.clone()) => {}
            () = replace_ended_workers(&mut tasks, || controller.clone().run_worker(leadership.clone())) => {}
        }
        controller.drain(tasks, drain, leadership_changes).await
    }

    async fn wait_until_synced(&self) {
        join_all(self.parts.informers.iter().map(|informer| informer.synced())).await;
    }

    /// Runs one worker, which processes one key at a time until the queue is closed.
    async fn run_worker(self: Arc<Self>, leadership: Leadership) {
        while let Some(claimed) = self.parts.queue.next().await {
            if let Some(claimed) = self.begin_or_hold(claimed) {
                self.process_claimed(claimed, &leadership).await;
            }
            tokio::task::consume_budget().await; // so that many short passes do not starve other tasks
        }
    }

    /// Returns the key unless it is held. Reports a key that the brake holds, once a minute. Without a brake, the pass
    /// itself finds out whether its object asks for it, since it decodes the object anyhow.
    fn begin_or_hold(&self, mut claimed: ClaimedKey) -> Option<ClaimedKey> {
        let queue = &self.parts.queue;
        let has_brake = queue.has_brake();
        if has_brake && !claimed.causes.is_prompted() && self.driver.is_asked_for(&claimed) {
            claimed.set_prompted();
        }
        let begun = queue.begin_or_hold(claimed);
        if has_brake && let Some((key, per_minute)) = queue.held_to_report() {
            tracing::warn!(
                "knative.dev/controller" = &*self.parts.name, %key, per_minute,
                "unprompted changes are paced: the key waits"
            );
            self.driver.report_held(&key, per_minute);
        }
        begun
    }

    /// Runs a pass. Without the lead, or while the bucket is handed over, the pass only observes. With it, the pass
    /// reconciles, and is dropped if the term ends.
    async fn process_claimed(&self, mut claimed: ClaimedKey, leadership: &Leadership) {
        let current = CurrentPass::begin(&self.parts.name, &claimed.key, claimed.causes.is_prompted());
        let led = self.start_pass(&claimed, leadership);
        let mode = if led.is_some() { PassMode::Leading } else { PassMode::Observing };
        let pass = self.run_pass(current.clone(), &claimed.causes, &claimed.in_a_row, mode);
        let result = match &led {
            Some(led) => led.run(pass).await,
            None => Some(pass.await),
        };
        if current.is_prompted() {
            claimed.set_prompted(); // for the passes that continue this one
        }
        let claimed = &claimed;
        match result {
            Some(result) => {
                if led.is_none() {
                    self.postpone(claimed, leadership);
                }
                self.requeue(claimed, &result);
            }
            None => {
                self.metrics.record_lost_pass(current.begun.elapsed());
                tracing::info!("knative.dev/controller" = &*self.parts.name, key = %**claimed, "the pass is dropped: the key is no longer led");
                self.postpone(claimed, leadership);
                self.parts.queue.forget(claimed);
                self.metrics.failing().remove(claimed);
                self.parts.per_key.drop_values_of(claimed);
                if self.driver.observes_as_follower() {
                    // The dropped pass may not have seen the newest state.
                    self.parts.queue.add_continuing(
                        (**claimed).clone(),
                        Cause::Leadership,
                        claimed.causes.is_prompted(),
                    );
                }
            }
        }
    }

    /// Starts a leading pass. Returns `None` without the lead, and during a handover unless the pass observes a deletion:
    /// the next leader may have listed the objects after the deletion.
    fn start_pass(&self, key: &Key, leadership: &Leadership) -> Option<LedPass> {
        let during_handover =
            || self.driver.observes_deletion_of(key).then(|| leadership.start_pass_during_handover(key))?;
        leadership.start_pass(key).or_else(during_handover)
    }

    /// Requeues, backs off or forgets the key, depending on the result. A conflict is retried even if the error is
    /// permanent, since it resolves itself.
    fn requeue(&self, claimed: &ClaimedKey, result: &Result<Outcome>) {
        let queue = &self.parts.queue;
        match result {
            Ok(_) => {
                self.metrics.failing().remove(claimed);
            }
            Err(error) if error.is_conflict() || error.is_waiting() => {}
            Err(_) => {
                self.metrics.failing().add(claimed);
            }
        }
        match result {
            Ok(outcome) => {
                queue.succeeded(claimed);
                if let Next::After(wait) = outcome.next() {
                    queue.continue_after(claimed, wait);
                }
            }
            Err(error) if error.is_waiting() => queue.continue_with_next(claimed), // which the list of the Kind enqueues
            Err(error) if error.is_permanent() && !error.is_conflict() => queue.forget(claimed),
            Err(error) => queue.retry(claimed, error.retry_wait(), &error.in_full()),
        }
    }

    /// Enqueues every key at each resync. Never resolves. The interval is jittered, so that controllers do not resync
    /// at the same time.
    async fn resync(&self) {
        while !self.parts.resync.is_zero() {
            let wait = jittered(format_args!("resync/{}", self.parts.name), self.parts.resync, 0.1);
            tokio::time::sleep(wait).await;
            self.parts.queue.resync_for(&Cause::resync());
        }
        std::future::pending().await
    }

    /// Enqueues the keys of gained buckets, and drops the values kept for the keys of lost buckets. The tracked reads of
    /// lost keys stay until the next pass of the key. Never resolves.
    async fn follow_leadership(&self, mut leadership: Leadership) {
        loop {
            let change = leadership.changed().await;
            tracing::info!("knative.dev/controller" = &*self.parts.name, gained = ?change.gained, lost = ?change.lost, "leadership changed");
            let is_lost = |key: &Key| change.lost.iter().any(|bucket| leadership.bucket_owns(bucket, key));
            self.parts.per_key.drop_where(is_lost);
            self.metrics.drop_where(is_lost);
            if !change.gained.is_empty() {
                self.promote(&change.gained, &leadership);
            }
        }
    }

    /// Enqueues the keys of gained buckets in the slow lane: those that the promote filter admits, and those that were
    /// postponed.
    fn promote(&self, gained: &[Arc<str>], leadership: &Leadership) {
        let is_gained = |key: &Key| gained.iter().any(|bucket| leadership.bucket_owns(bucket, key));
        let promoted = self.driver.keys_to_promote().into_iter().filter(is_gained).map(|key| (key, false));
        let postponed = self.postponed.lock().take_where(is_gained).into_iter();
        let postponed = postponed.map(|(key, prompted)| (Arc::unwrap_or_clone(key), prompted));
        promoted.chain(postponed).for_each(|(key, prompted)| {
            self.parts.queue.add_slow_continuing(key, Cause::Leadership, prompted);
        });
    }

    /// Keeps a key that became due while this process did not lead it, if a promotion would miss it. If this process
    /// leads it by now, it is enqueued at once.
    ///
    /// While another process leads, the key is kept for [`KEPT_LEASES`]: that process may have died, or hand the bucket
    /// over, before it processed the key.
    fn postpone(&self, claimed: &ClaimedKey, leadership: &Leadership) {
        // Locked before the leader is read: if this process gains the bucket after that, `promote` waits for the lock
        // and finds the key.
        let mut postponed = self.postponed.lock();
        let prompted = claimed.causes.is_prompted();
        let led_before = match leadership.state(claimed) {
            BucketState::Led { .. } => {
                return self.parts.queue.add_continuing(Key::clone(claimed), Cause::Leadership, prompted);
            }
            BucketState::Draining { .. } => true,
            BucketState::Other => false,
            BucketState::Unknown { was_led } => was_led,
        };
        if self.driver.is_missed_by_promotion(claimed, led_before) {
            postponed.keep(Key::clone(claimed), leadership.lease_duration() * KEPT_LEASES, prompted);
        }
    }

    /// Drops the expired postponed keys once in each lease duration. Never resolves.
    async fn expire_postponed(&self, leadership: Leadership) {
        let lease_duration = leadership.lease_duration();
        while !lease_duration.is_zero() {
            tokio::time::sleep(lease_duration).await;
            let is_led_by_other = |key: &Key| matches!(leadership.state(key), BucketState::Other);
            self.postponed.lock().drop_expired(lease_duration * KEPT_LEASES, is_led_by_other);
        }
        std::future::pending().await
    }

    /// Closes the queue, waits for the running passes, and drops those that exceed the limit. Leadership may be lost
    /// meanwhile, so its changes are still handled.
    async fn drain(
        &self,
        mut tasks: JoinSet<()>,
        limit: Duration,
        leadership_changes: Pin<&mut impl Future<Output = ()>>,
    ) -> Drained {
        self.parts.queue.close();
        let all_ended = async { while tasks.join_next().await.is_some() {} };
        let in_time = tokio::select! {
            biased;
            ended = tokio::time::timeout(limit, all_ended) => ended.is_ok(),
            () = leadership_changes => false,
        };
        if in_time {
            return Drained::default();
        }
        let dropped = self.parts.queue.running();
        for (key, since) in &dropped {
            tracing::warn!("knative.dev/controller" = &*self.parts.name, %key, age = ?since.elapsed(), "the pass is dropped: it did not end in time");
        }
        tasks.shutdown().await;
        Drained { dropped: dropped.len() }
    }
}

/// Replaces workers that end, which happens only if a panic occurs while a user's future is dropped. Never resolves.
async fn replace_ended_workers<F: Future<Output = ()> + Send + 'static>(
    tasks: &mut JoinSet<()>,
    worker: impl Fn() -> F,
) {
    while tasks.join_next().await.is_some() {
        tracing::error!("a worker ended, and is replaced");
        tasks.spawn(worker());
    }
}
