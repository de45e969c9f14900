//! The elector of one bucket: acquires its Lease, renews it, and hands it over.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use kube::Client;
use kube_leader_election::{LeaseLock, LeaseLockResult};
use reknit_injection::internal::{LogLimit, jittered};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::{
    LeaderElectionConfig,
    bucket::BucketReporter,
    lease::{Guard, LeaseError, LeaseWatch},
    members::{Balance, Step},
};
use reknit_injection::internal::sleep_until_optional;

/// The longest of each wait of a stopping elector: for an attempt in flight, and for the release of the lease.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a conflict. It doubles with each further conflict in a row, up to the retry period.
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);
/// The number of conflicts in a row from which on conflicts are logged as warnings, a repeated one once a minute.
const CONFLICTS_TO_WARN: u32 = 10;

pub(super) struct Elector {
    client: Client,
    namespace: String,
    config: LeaderElectionConfig,
    watch: LeaseWatch,
    balance: Arc<Balance>,
    bucket: BucketReporter,
    /// True if the lease may name this process as its holder: the lease was acquired, an attempt is running, or the
    /// answer to an attempt was lost.
    may_hold: bool,
    /// The number of conflicts in a row.
    conflicts: u32,
    log_limit: LogLimit<LeaseError>,
}

impl Elector {
    pub(super) fn new(
        client: Client,
        namespace: &str,
        config: &LeaderElectionConfig,
        watch: LeaseWatch,
        balance: Arc<Balance>,
        bucket: BucketReporter,
    ) -> Self {
        let (namespace, config, log_limit) = (namespace.into(), config.clone(), LogLimit::default());
        Self { client, namespace, config, watch, balance, bucket, may_hold: false, conflicts: 0, log_limit }
    }

    /// Acquires, renews and hands over the lease, as [`Balance`] decides, until `stopping` resolves. If this process leads
    /// then, renews the lease until `drained` resolves or leadership ends. Finally releases the lease if this process may
    /// hold it.
    pub(super) async fn run(
        mut self,
        stopping: impl Future<Output = ()> + Send,
        drained: impl Future<Output = ()> + Send,
    ) {
        let expire_terms = self.bucket.clone().expire_terms();
        let lock = self.lock();
        let elect = async {
            self.follow_balance(&lock, stopping).await;
            self.attempt_while(&lock, drained, BucketReporter::leads).await;
            self.bucket.resign();
            self.release_if_held(&lock).await;
        };
        tokio::select! {
            () = elect => {}
            () = expire_terms => {} // never returns; it runs beside the election
        }
    }

    fn lock(&self) -> LeaseLock {
        let guard = Guard {
            client: self.client.clone(),
            identity: self.bucket.identity().to_string(),
            lease: self.bucket.lease().into(),
            watch: self.watch.clone(),
            metadata: serde_json::Value::Null,
        };
        guard.lock(&self.namespace, &self.config)
    }

    /// Does what the balance decides, until `stop` resolves.
    async fn follow_balance(&mut self, lock: &LeaseLock, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut leases = self.balance.changes();
        let mut next_attempt = Instant::now();
        loop {
            leases.mark_unchanged();
            let now = Instant::now();
            let wake = match self.balance.step(
                self.bucket.bucket().index(),
                &self.bucket.bucket().led_buckets(),
                now,
            ) {
                Step::Attempt if now < next_attempt => Some(next_attempt),
                Step::Attempt => {
                    let Some(pause) = self.attempt_unless_stopped(lock, stop.as_mut()).await else { return };
                    next_attempt = Instant::now() + pause;
                    Some(next_attempt)
                }
                Step::HandOver { reason } => {
                    self.hand_over(lock, &reason).await;
                    Some(Instant::now())
                }
                Step::Wait { holder, until } => {
                    if let Some(holder) = holder {
                        self.bucket.set_led_by_other(&holder);
                    }
                    next_attempt = now;
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

    /// Lets the running passes of the bucket end, and releases the lease. Passes that still run at the renew deadline are
    /// dropped. The lease is renewed meanwhile.
    async fn hand_over(&mut self, lock: &LeaseLock, reason: &str) {
        let bucket = self.bucket.bucket().clone();
        bucket.start_draining();
        let drained = timeout(self.config.renew_deadline, bucket.drained());
        let mut drained = pin!(async { drop(drained.await) });
        if futures::poll!(&mut drained).is_pending() {
            self.attempt_while(lock, drained, BucketReporter::leads).await;
        }
        self.bucket.hand_over(reason);
        self.release_if_held(lock).await;
        self.balance.record_release(bucket.index());
    }

    async fn release_if_held(&mut self, lock: &LeaseLock) {
        if self.may_hold && timeout(STOP_TIMEOUT, self.release(lock)).await.is_err() {
            warn!(lease = self.bucket.lease(), identity = %self.bucket.identity(),
                "lease was not released in time; others take it once it has expired");
        }
    }

    /// Repeats [`attempt`](Self::attempt) while the condition holds, until `stop` resolves. An attempt in flight is
    /// then awaited, up to [`STOP_TIMEOUT`]: if it were dropped, its write might be applied after the release.
    async fn attempt_while(
        &mut self,
        lock: &LeaseLock,
        stop: impl Future<Output = ()>,
        condition: fn(&BucketReporter) -> bool,
    ) {
        let mut stop = pin!(stop);
        while condition(&self.bucket) {
            let Some(pause) = self.attempt_unless_stopped(lock, stop.as_mut()).await else { return };
            tokio::select! {
                () = sleep(pause) => {}
                () = &mut stop => return,
            }
        }
    }

    /// Attempts to acquire or renew the lease once. Returns the pause before the next attempt, or `None` if `stop` resolved
    /// meanwhile.
    async fn attempt_unless_stopped(
        &mut self,
        lock: &LeaseLock,
        stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Option<Duration> {
        let mut attempt = pin!(self.attempt(lock));
        tokio::select! {
            pause = &mut attempt => Some(pause),
            () = stop => {
                // An attempt that times out leaves `may_hold` set.
                timeout(STOP_TIMEOUT, attempt).await.ok();
                None
            }
        }
    }

    /// Attempts to acquire or renew the lease once. Returns the pause before the next attempt.
    async fn attempt(&mut self, lock: &LeaseLock) -> Duration {
        let may_have_held = std::mem::replace(&mut self.may_hold, true);
        let reason = self.balance.reason_to_acquire(self.bucket.bucket().index());
        let start = Instant::now();
        match lock.try_acquire_or_renew().await {
            Ok(LeaseLockResult::Acquired(_)) if !self.bucket.leads() && !self.balance.may_lead() => {
                // Another member may use another number of buckets by now.
                self.release_if_held(lock).await;
                self.jittered_retry_period()
            }
            Ok(LeaseLockResult::Acquired(_)) => {
                self.bucket.set_leading(start + self.config.renew_deadline, &reason);
                self.reset_errors();
                self.config.retry_period
            }
            Ok(LeaseLockResult::NotAcquired(lease)) => {
                self.may_hold = false;
                let holder = lease.spec.and_then(|spec| spec.holder_identity);
                self.bucket.set_led_by_other(holder.as_deref().unwrap_or_default());
                self.reset_errors();
                self.jittered_retry_period()
            }
            Err(error) => {
                let error = LeaseError::from(&error);
                self.may_hold = may_have_held || error.may_have_written();
                self.handle_error(&error)
            }
        }
    }

    /// Resets the errors after an attempt without an error, even if another process holds the lease.
    fn reset_errors(&mut self) {
        self.conflicts = 0;
        self.log_limit.reset();
    }

    /// Counts conflicts in a row, and logs the error. Returns the pause before the next attempt.
    fn handle_error(&mut self, error: &LeaseError) -> Duration {
        let is_conflict = matches!(error, LeaseError::Conflict(_));
        self.conflicts = if is_conflict { self.conflicts.saturating_add(1) } else { 0 };
        let (lease, identity, leading) = (self.bucket.lease(), self.bucket.identity(), self.bucket.leads());
        if is_conflict && self.conflicts < CONFLICTS_TO_WARN {
            debug!(lease, %identity, leading, "{error}");
        } else if self.log_limit.allows(error) {
            warn!(lease, namespace = self.namespace, %identity, leading, "{error}");
        }
        if !is_conflict {
            return self.jittered_retry_period();
        }
        let pause = jittered(CONFLICT_PAUSE * 2u32.saturating_pow(self.conflicts - 1), 0.5);
        pause.min(self.jittered_retry_period())
    }

    /// The retry period, jittered so that candidates that started at the same time spread their attempts.
    fn jittered_retry_period(&self) -> Duration {
        jittered(self.config.retry_period, 0.5)
    }

    /// Releases the lease, if this process holds it. Retries until this succeeds or it no longer holds it.
    async fn release(&mut self, lock: &LeaseLock) {
        let (lease, identity) = (self.bucket.lease(), self.bucket.identity());
        loop {
            let Err(error) = lock.step_down().await else {
                self.may_hold = false;
                return debug!(lease, %identity, "released lease");
            };
            match LeaseError::from(&error) {
                LeaseError::NotHeld => {
                    self.may_hold = false;
                    return;
                }
                error => debug!(lease, %identity, %error, "lease not released yet"),
            }
            sleep(jittered(CONFLICT_PAUSE * 4, 0.5)).await;
        }
    }
}
