//! The elector of one bucket: acquires its Lease, renews it, and hands it over.

use std::{
    future::Future,
    mem,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use kube_leader_election::{LeaseLock, LeaseLockResult};
use reknit_injection::internal::{LogLimit, jittered, sleep_until_optional};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, warn};

use crate::{
    balance::{Balance, Step},
    bucket::BucketWriter,
    candidate::Candidate,
    last_writes::LastWrites,
    lease::LeaseError,
    moment::Moment,
};

/// The longest of each wait of a stopping elector: for an attempt in flight, and for the release of the lease.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first conflict in a row: only the state that was known is old.
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);
/// The pause after the second conflict in a row, and after a failed release. It doubles with each further conflict, up to
/// the retry period.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The number of conflicts in a row from which on conflicts are logged as warnings, a repeated one once a minute.
const CONFLICTS_TO_WARN: u32 = 10;

pub(crate) struct Elector {
    candidate: Candidate,
    pub(crate) balance: Arc<Balance>,
    bucket: BucketWriter,
    lock: LeaseLock,
    pub(crate) last_writes: Arc<LastWrites>,
    /// True if the lease may name this process as its holder: the lease was acquired, an attempt is running, or the
    /// answer to an attempt was lost.
    may_hold: bool,
    /// The start of the last attempt.
    last_attempt: Instant,
    /// The number of conflicts in a row.
    conflicts: u32,
    /// True if the last attempt failed, so that the next one is a retry.
    is_retry: bool,
    log_limit: LogLimit<LeaseError>,
}

impl Elector {
    pub(crate) fn new(candidate: Candidate, balance: Arc<Balance>, bucket: BucketWriter) -> Self {
        let last_writes = Arc::<LastWrites>::default();
        let lock = candidate.lock(bucket.lease(), Value::Null, last_writes.clone());
        Self {
            candidate,
            balance,
            bucket,
            lock,
            last_writes,
            may_hold: false,
            last_attempt: Instant::now(),
            conflicts: 0,
            is_retry: false,
            log_limit: LogLimit::default(),
        }
    }

    /// Acquires, renews and hands over the lease, as [`Balance`] decides, until `stopping` resolves. If this process
    /// leads then, renews the lease until `drained` resolves or leadership ends. Finally releases the lease if this
    /// process may hold it.
    pub(crate) async fn run(
        mut self,
        stopping: impl Future<Output = ()> + Send,
        drained: impl Future<Output = ()> + Send,
    ) {
        let expire_terms = self.bucket.clone().expire_terms();
        let elect = async {
            self.follow_balance(stopping).await;
            self.renew_until(drained).await;
            self.bucket.resign();
            self.release_if_held().await;
        };
        tokio::select! {
            biased;
            () = expire_terms => {} // never returns; first, so that the election sees an ended term as ended
            () = elect => {}
        }
    }

    /// Does what the balance decides, until `stop` resolves.
    async fn follow_balance(&mut self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut leases = self.candidate.watch.subscribe();
        let mut next_attempt = Instant::now();
        loop {
            leases.mark_unchanged();
            let now = Instant::now();
            let wake = match self.balance.step(self.bucket.index()) {
                Step::Attempt if now < next_attempt && !self.is_edited() => Some(next_attempt),
                Step::Attempt => {
                    let Some(pause) = self.attempt_unless_stopped(stop.as_mut()).await else { return };
                    next_attempt = Instant::now() + pause;
                    Some(next_attempt)
                }
                Step::HandOver { reason } => {
                    self.hand_over(&reason).await;
                    Some(Instant::now())
                }
                Step::Wait { holder, until } => {
                    if let Some(holder) = holder {
                        self.bucket.follow(&holder);
                    }
                    next_attempt = now; // a lease that becomes free is attempted at once
                    until
                }
            };
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = sleep_until_optional(wake) => {}
                _ = leases.changed() => {}
            }
        }
    }

    /// Stops new passes of the bucket, and renews the lease until the running ones have ended, but no longer than
    /// `renew_deadline` after the call. Then ends the term, which drops the passes that still run, and releases the
    /// lease.
    async fn hand_over(&mut self, reason: &str) {
        self.bucket.drain();
        let bucket = self.bucket.clone();
        let drained = timeout(self.candidate.config.renew_deadline, bucket.drained());
        self.renew_until(async { drop(drained.await) }).await;
        self.bucket.hand_over(reason);
        self.release_if_held().await;
        self.bucket.record_release();
    }

    async fn release_if_held(&mut self) {
        if self.may_hold && timeout(STOP_TIMEOUT, self.release()).await.is_err() {
            warn!(lease = self.bucket.lease(), identity = %self.bucket.identity(),
                "lease was not released in time; others take it once it has expired");
        }
    }

    /// Renews the lease while this process leads, until `stop` resolves.
    async fn renew_until(&mut self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut next_attempt = Instant::now();
        while self.bucket.is_in_term() {
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = sleep_until(next_attempt) => {}
                () = self.edited() => {}
            }
            let Some(pause) = self.attempt_unless_stopped(stop.as_mut()).await else { return };
            next_attempt = Instant::now() + pause;
        }
    }

    /// Returns true if the watch has reported since the last attempt that the lease of this leader was deleted, or names
    /// another holder or a shorter time, since someone has edited it. The leader then renews it or stops: another process
    /// may take it at once. A failed attempt has a pause of its own.
    fn is_edited(&self) -> bool {
        self.bucket.is_in_term() && !self.is_retry && self.is_edited_since_attempt()
    }

    fn is_edited_since_attempt(&self) -> bool {
        let leases = self.candidate.watch.read();
        let (lease, identity) = (self.bucket.lease(), self.bucket.identity().as_str());
        leases.is_edited_since(self.last_attempt, lease, identity, self.candidate.config.lease_duration)
    }

    /// Waits until the caches have the last writes of the previous leader, but only so long that the first renewal is still in
    /// time. Returns false if somebody has edited the lease meanwhile.
    async fn wait_for_last_writes(&self) -> bool {
        let config = &self.candidate.config;
        let left = config.renew_deadline.saturating_sub(self.last_attempt.elapsed());
        let limit = left.saturating_sub(config.retry_period) / 2;
        let edited = async {
            let mut leases = self.candidate.watch.subscribe();
            while !self.is_edited_since_attempt() {
                leases.changed().await.ok(); // never fails: `self` holds the sender
            }
        };
        tokio::select! {
            biased;
            () = edited => false,
            () = self.last_writes.wait_until_seen(self.bucket.lease(), limit) => true,
        }
    }

    async fn edited(&self) {
        let mut leases = self.candidate.watch.subscribe();
        while !self.is_edited() {
            leases.changed().await.ok(); // never fails: `self` holds the sender
        }
    }

    /// Attempts to acquire or renew the lease once. Returns the pause before the next attempt, or `None` if `stop`
    /// resolved meanwhile. The attempt is then awaited, up to [`STOP_TIMEOUT`]: if it were dropped, its write might be
    /// applied after the release.
    async fn attempt_unless_stopped(&mut self, stop: Pin<&mut impl Future<Output = ()>>) -> Option<Duration> {
        let mut attempt = pin!(self.attempt());
        tokio::select! {
            biased;
            pause = &mut attempt => Some(pause),
            () = stop => {
                // An attempt that times out leaves `may_hold` set.
                timeout(STOP_TIMEOUT, attempt).await.ok();
                None
            }
        }
    }

    /// Attempts to acquire or renew the lease once, unless this process is stalled. Returns the pause before the next
    /// attempt.
    async fn attempt(&mut self) -> Duration {
        self.last_attempt = Instant::now();
        if self.candidate.is_stalled() {
            debug!(lease = self.bucket.lease(), "no attempt: passes make no progress");
            return self.candidate.stalled_pause();
        }
        if mem::take(&mut self.is_retry) {
            self.candidate.retries.turn().await;
        }
        // Until the answer arrives, the lease may name this process.
        let may_have_held = mem::replace(&mut self.may_hold, true);
        let reason = self.balance.reason_to_acquire(self.bucket.index());
        let start = Moment::now();
        match self.lock.try_acquire_or_renew().await {
            Ok(LeaseLockResult::Acquired(_)) if !self.bucket.is_in_term() && !self.balance.may_lead() => {
                // Another member may use another number of buckets by now.
                self.release_if_held().await;
                self.jittered_retry_period()
            }
            Ok(LeaseLockResult::Acquired(_)) => {
                let is_renewal = self.bucket.is_in_term();
                if !is_renewal && !self.wait_for_last_writes().await {
                    return Duration::ZERO;
                }
                self.bucket.lead(start.after(self.candidate.config.renew_deadline), &reason);
                self.reset_errors();
                let retry_period = self.candidate.config.retry_period;
                // The renewals of the leases that a process acquires at once are spread over the retry period. So after
                // its death, one of them is soon overdue.
                if is_renewal { retry_period } else { self.jittered(retry_period, 1.0) }
            }
            Ok(LeaseLockResult::NotAcquired(lease)) => {
                self.may_hold = false;
                let holder = lease.spec.and_then(|spec| spec.holder_identity);
                self.bucket.follow(holder.as_deref().unwrap_or_default());
                self.reset_errors();
                self.jittered_retry_period()
            }
            Err(error) => {
                let pause = self.candidate.pause_after(self.bucket.lease(), &error, self.bucket.deadline());
                let error = LeaseError::from(error);
                self.may_hold = may_have_held || matches!(error, LeaseError::MaybeWritten(_));
                self.handle_error(&error, pause)
            }
        }
    }

    /// Resets the errors after an attempt without an error, even if another process holds the lease.
    fn reset_errors(&mut self) {
        self.conflicts = 0;
        self.bucket.record_attempt(None);
        self.log_limit.reset();
    }

    /// Counts conflicts in a row, and logs the error. Returns the pause before the next attempt: this one, or a shorter
    /// one after a conflict.
    fn handle_error(&mut self, error: &LeaseError, pause: Duration) -> Duration {
        self.is_retry = true;
        self.bucket.record_attempt(Some(error.to_string()));
        let is_conflict = matches!(error, LeaseError::Conflict(_));
        self.conflicts = if is_conflict { self.conflicts.saturating_add(1) } else { 0 };
        let (lease, identity, leading) =
            (self.bucket.lease(), self.bucket.identity(), self.bucket.is_in_term());
        if is_conflict && self.conflicts < CONFLICTS_TO_WARN {
            debug!(lease, %identity, leading, "{error}");
        } else if self.log_limit.allows(error) {
            warn!(lease, namespace = self.candidate.namespace(), %identity, leading, "{error}");
        }
        if !is_conflict {
            return pause;
        }
        let further = |conflicts| RETRY_PAUSE.saturating_mul(2u32.saturating_pow(conflicts));
        pause.min(self.jittered(self.conflicts.checked_sub(2).map_or(CONFLICT_PAUSE, further), 0.5))
    }

    /// The retry period, jittered so that candidates that started at the same time spread their attempts.
    fn jittered_retry_period(&self) -> Duration {
        self.jittered(self.candidate.config.retry_period, 0.5)
    }

    fn jittered(&self, wait: Duration, part: f64) -> Duration {
        jittered(format_args!("elector/{}", self.bucket.lease()), wait, part)
    }

    /// Releases the lease, if this process holds it. Retries until this succeeds or it no longer holds it.
    async fn release(&mut self) {
        let (lease, identity) = (self.bucket.lease(), self.bucket.identity());
        while let Err(error) = self.lock.step_down().await.map_err(LeaseError::from) {
            if error == LeaseError::NotHeld {
                break;
            }
            debug!(lease, %identity, %error, "lease not released yet");
            sleep(self.jittered(RETRY_PAUSE, 0.5)).await;
            self.candidate.retries.turn().await;
        }
        self.may_hold = false;
        debug!(lease, %identity, "lease is not held any more");
    }
}
