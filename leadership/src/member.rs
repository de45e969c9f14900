//! Announces this process to the other replicas, by a Lease of its own.

use std::{future::Future, mem, sync::Arc, time::Duration};

use kube::api::DeleteParams;
use kube_leader_election::{LeaseLock, LeaseLockResult};
use reknit_injection::internal::LogLimit;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use crate::{
    candidate::Candidate,
    config::is_lease_name,
    dead_members::{DeadMembers, delete_leases},
    lease::{Announcement, LeaseError, RunningControllers},
    moment::{Deadline, Moment},
    selections::Selections,
};

/// The time to delete the lease at the end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of characters at the end of an identity that make it unique.
const UUID_LENGTH: usize = 36;

/// A process that announces itself, so that the replicas of a component can divide the buckets among them. A process
/// has one member, for all of its controllers.
///
/// The process has a Lease of its own, named `<component>.member.<identity>`. Its annotations hold the number of
/// buckets and the names of the controllers that run. It is deleted when the process stops, and with the Pod that owns
/// it.
#[must_use = "other replicas do not know of this process unless the member runs"]
pub struct Member {
    candidate: Candidate,
    lease: String,
    /// True if the last attempt to renew the lease failed, so that the next one is a retry.
    is_retry: bool,
    log_limit: LogLimit<LeaseError>,
    selections: Selections,
}

impl Member {
    /// Creates the member of this process.
    pub fn new(candidate: &Candidate) -> Self {
        let lease = lease_name(&candidate.component, candidate.identity.as_str());
        Self {
            candidate: candidate.clone(),
            lease,
            is_retry: false,
            log_limit: LogLimit::default(),
            selections: Selections::default(),
        }
    }

    /// Announces the controllers whose electors run, and finds the members that died, until `stopping` resolves. Then
    /// deletes the lease.
    ///
    /// Announces nothing while leases cannot be watched, since this process would not know of the other members.
    pub async fn run(mut self, stopping: impl Future<Output = ()> + Send) {
        let dead_members = DeadMembers::new(&self.candidate);
        let (candidate, own_lease) = (self.candidate.clone(), self.lease.clone());
        tokio::select! {
            biased;
            () = stopping => {}
            () = self.announce() => {}
            () = dead_members.find() => {}
            () = delete_leases(&candidate, &own_lease) => {}
        }
        let is_announced = self.candidate.member_until.lock().take().is_some();
        if is_announced
            && timeout(LEAVE_TIMEOUT, self.delete(&self.lease, &DeleteParams::default())).await.is_err()
        {
            warn!(lease = self.lease, "the lease of this member was not deleted in time, and expires");
        }
    }

    /// Renews the lease at each retry period, and at once if other controllers run. Never resolves.
    async fn announce(&mut self) {
        self.candidate.watch.synced().await;
        let mut controllers = self.candidate.controllers.subscribe();
        loop {
            let mut running = RunningControllers::new();
            let are_any = |now: &RunningControllers| {
                running.clone_from(now);
                !now.is_empty()
            };
            controllers.wait_for(are_any).await.ok(); // never fails: `self` holds the sender
            let announcement = self.announcement(running);
            let lock = self.lock(&announcement);
            loop {
                let pause = self.renew(&lock).await;
                self.selections.compare(&self.candidate, &announcement);
                tokio::select! {
                    biased;
                    () = sleep(pause) => {}
                    _ = controllers.changed() => break,
                }
            }
        }
    }

    /// Acquires or renews the lease once, unless this process is stalled. Returns the pause before the next attempt.
    async fn renew(&mut self, lock: &LeaseLock) -> Duration {
        if self.candidate.is_stalled() {
            return self.candidate.stalled_pause();
        }
        if mem::take(&mut self.is_retry) {
            self.candidate.retries.turn().await;
        }
        let start = Moment::now();
        match lock.try_acquire_or_renew().await {
            Ok(LeaseLockResult::Acquired(_)) => {
                let was_member = self.candidate.is_member(Instant::now());
                let until = Deadline::after(start, self.candidate.config.renew_deadline);
                *self.candidate.member_until.lock() = Some(until);
                if !was_member {
                    // The watch may have reported the lease before this answer, when it did not count yet.
                    self.candidate.watch.wake();
                }
                self.log_limit.reset();
            }
            Ok(LeaseLockResult::NotAcquired(_)) => {
                warn!(lease = self.lease, "the lease of this member is held by another process");
            }
            Err(error) => {
                self.is_retry = true;
                let until = self.candidate.member_until.lock().map(Deadline::instant);
                let deadline = until.filter(|until| start.after(Duration::ZERO) < *until);
                let pause = self.candidate.pause_after(&self.lease, &error, deadline);
                let error = LeaseError::from(error);
                if self.log_limit.allows(&error) {
                    warn!(lease = self.lease, namespace = self.candidate.namespace(), "{error}");
                }
                return pause;
            }
        }
        self.candidate.config.retry_period
    }

    fn announcement(&self, controllers: RunningControllers) -> Announcement {
        let Candidate { component, config, .. } = &self.candidate;
        Announcement { component: component.clone(), buckets: config.buckets, controllers }
    }

    /// The lock on the own lease, whose writes announce this process.
    fn lock(&self, announcement: &Announcement) -> LeaseLock {
        let mut metadata = announcement.metadata();
        if let Some(owner) = &self.candidate.owner {
            metadata["ownerReferences"] = json!([owner]);
        }
        self.candidate.lock(&self.lease, metadata, Arc::default())
    }

    async fn delete(&self, lease: &str, deletion: &DeleteParams) {
        if let Err(error) = self.candidate.leases().delete(lease, deletion).await {
            debug!(lease, %error, "the lease of a member was not deleted");
        }
    }
}

/// The name of the lease: with the identity, or with its unique part alone if the host name is no part of a name.
fn lease_name(component: &str, identity: &str) -> String {
    let name = |part: &str| format!("{component}.member.{}", part.replace('_', "-")).to_lowercase();
    let (whole, unique) = (name(identity), &identity[identity.len().saturating_sub(UUID_LENGTH)..]);
    if is_lease_name(&whole) { whole } else { name(unique) }
}
