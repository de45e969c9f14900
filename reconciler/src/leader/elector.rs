//! Contends for one Lease, keeps it, and gives it back.

use std::{future::Future, pin::pin, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use prometheus::IntGauge;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::{
    Candidate, Identity,
    guard::guarded,
    leadership::Chair,
    trouble::{Complaints, Trouble},
};

/// How long a stop may wait for the API server: for an attempt under way to end, and for a lease to be released.
const FAREWELL: Duration = Duration::from_secs(5);
/// The first pause after a write that lost a race; doubled each time in a row, up to the retry period.
const RACE: Duration = Duration::from_millis(50);

/// The elector of one bucket.
pub(super) struct Elector {
    candidate: Candidate,
    post: Post,
    /// Whether the lease may bear our name: it was acquired, or the answer to an attempt never came.
    may_hold: bool,
    /// How many writes in a row lost a race.
    races: u32,
    complaints: Complaints,
}

impl Elector {
    pub(super) fn new(candidate: &Candidate, chair: Chair, status: Option<IntGauge>) -> Self {
        let post = Post { chair, identity: candidate.identity.clone(), status };
        post.show();
        Self {
            candidate: candidate.clone(),
            post,
            may_hold: false,
            races: 0,
            complaints: Complaints::default(),
        }
    }

    /// Contends until `stopping`, keeps what it leads until `drained`, then releases it.
    pub(super) async fn run(
        mut self,
        stopping: impl Future<Output = ()> + Send,
        drained: impl Future<Output = ()> + Send,
    ) {
        let deadline = self.post.clone().end_in_time();
        let lock = self.lock();
        let term = async {
            self.contend(&lock, stopping, |_| true).await;
            self.contend(&lock, drained, |post| post.chair.leads()).await;
            self.post.resign();
            if self.may_hold && timeout(FAREWELL, self.release(&lock)).await.is_err() {
                warn!(lease = self.post.chair.name(), identity = %self.post.identity,
                    "lease was not released in time; others take it once it has expired");
            }
        };
        tokio::select! {
            () = term => {}
            () = deadline => {}
        }
    }

    fn lock(&self) -> LeaseLock {
        let Candidate { client, namespace, identity, config, .. } = &self.candidate;
        // A read and a write have to fit into the renew deadline, with time left to try again.
        let client = guarded(client.clone(), identity.as_str(), config.renew_deadline / 3);
        let params = LeaseLockParams {
            lease_name: self.post.chair.name().into(),
            holder_id: identity.to_string(),
            lease_ttl: config.lease_duration,
        };
        LeaseLock::new(client, namespace, params)
    }

    /// Attempts to acquire or renew, again and again while there is cause, until the stop. An attempt under way
    /// then is not dropped at once: its write might be applied after the release.
    async fn contend(&mut self, lock: &LeaseLock, stop: impl Future<Output = ()>, cause: fn(&Post) -> bool) {
        let mut stop = pin!(stop);
        while cause(&self.post) {
            let mut attempt = pin!(self.attempt(lock));
            let pause = tokio::select! {
                pause = &mut attempt => pause,
                () = &mut stop => {
                    // One that takes longer leaves `may_hold`.
                    timeout(FAREWELL, attempt).await.ok();
                    return;
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = &mut stop => return,
            }
        }
    }

    /// One attempt; returns how long to wait before the next.
    async fn attempt(&mut self, lock: &LeaseLock) -> Duration {
        let held = std::mem::replace(&mut self.may_hold, true);
        let began = Instant::now();
        match lock.try_acquire_or_renew().await {
            Ok(LeaseLockResult::Acquired(_)) => {
                self.post.lead(began + self.candidate.config.renew_deadline);
                self.settled()
            }
            Ok(LeaseLockResult::NotAcquired(lease)) => {
                self.may_hold = false;
                self.post.elsewhere(&lease);
                self.settled()
            }
            Err(error) => {
                let trouble = Trouble::of(&error);
                self.may_hold = held || trouble.may_have_written();
                self.troubled(&trouble)
            }
        }
    }

    fn settled(&mut self) -> Duration {
        self.races = 0;
        self.complaints.clear();
        self.retry_period()
    }

    fn troubled(&mut self, trouble: &Trouble) -> Duration {
        let name = self.post.chair.name();
        if let Trouble::Race(message) = trouble {
            debug!(lease = name, identity = %self.post.identity, message, "lease changed under the write");
            self.races += 1;
            let pause = RACE * 2u32.saturating_pow(self.races - 1);
            return jittered(pause).min(self.retry_period());
        }
        if self.complaints.due(trouble) {
            warn!(lease = name, namespace = self.candidate.namespace, identity = %self.post.identity,
                leading = self.post.chair.leads(), "{trouble}");
        }
        self.retry_period()
    }

    /// Jittered, so that candidates that started together do not stay together.
    fn retry_period(&self) -> Duration {
        jittered(self.candidate.config.retry_period)
    }

    async fn release(&mut self, lock: &LeaseLock) {
        let (lease, identity) = (self.post.chair.name(), &self.post.identity);
        loop {
            let Err(error) = lock.step_down().await else {
                return info!(lease, %identity, "released lease");
            };
            match Trouble::of(&error) {
                Trouble::NotHeld => return,
                trouble => debug!(lease, %identity, %trouble, "lease not released yet"),
            }
            sleep(jittered(RACE * 4)).await;
        }
    }
}

/// Between half of it and the whole.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

/// The bucket's place in [`Leadership`](super::Leadership), with everybody who is told when it changes.
#[derive(Clone)]
struct Post {
    chair: Chair,
    identity: Identity,
    status: Option<IntGauge>,
}

impl Post {
    fn lead(&self, until: Instant) {
        if self.chair.lead(until) {
            info!(lease = self.chair.name(), identity = %self.identity, "became leader");
            self.show();
        }
    }

    fn elsewhere(&self, lease: &Lease) {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if self.chair.elsewhere() {
            info!(lease = self.chair.name(), identity = %self.identity, holder, "lease is held by another process");
            self.show();
        }
    }

    fn resign(&self) {
        if self.chair.vacate() {
            info!(lease = self.chair.name(), identity = %self.identity, "stopped leading");
            self.show();
        }
    }

    /// Ends leadership whenever it was not renewed in time, whatever the attempts are waiting for.
    async fn end_in_time(self) {
        loop {
            let until = self.chair.until().await;
            sleep_until(until).await;
            if self.chair.expire() {
                warn!(lease = self.chair.name(), identity = %self.identity,
                    "stopped leading: the lease was not renewed before the renew deadline");
                self.show();
            }
        }
    }

    fn show(&self) {
        if let Some(status) = &self.status {
            status.set(self.chair.leads().into());
        }
    }
}
