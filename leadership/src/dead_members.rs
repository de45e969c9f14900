//! Finds the members that died, and deletes their leases.
//!
//! A member counts as dead once its lease has expired, or earlier if its Pod [proves](proves_death) its death. The Pod is
//! read once a renewal of the member is overdue, and then every second. A process that is restarted in the same Pod reads
//! that Pod at once. The Pod of a restarted process is read every second from the start, since a process that crashed may
//! soon crash again, and its leases are so new that no renewal is due.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams};
use reknit_injection::internal::LogLimit;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::{
    candidate::Candidate,
    identity::pod_of,
    lease::{TICK, proves_death},
};

/// The time from the proof of a death to the first pass of a successor. Meanwhile, the last requests of the dead process
/// arrive, and the caches report what they wrote.
const FENCE: Duration = Duration::from_secs(2);

/// The time after which a renewal that is due counts as overdue. A read of a Pod in vain is cheap.
const OVERDUE: Duration = Duration::from_millis(500);

/// The time between two reads of the Pod of a member with an overdue renewal. The kubelet reports a death within a second.
const READ_PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct DeadMembers {
    candidate: Candidate,
    /// The lease of this process's own member.
    own_lease: String,
    /// The time at which the Pod of each live member was last read.
    reads: BTreeMap<String, Instant>,
    /// The members that were alive within the last lease duration.
    seen: BTreeMap<String, Seen>,
    log_limit: LogLimit<String>,
}

struct Seen {
    last: Instant,
    /// The time at which the member was first seen, if another process ran in its Pod before.
    restarted: Option<Instant>,
}

impl DeadMembers {
    pub(crate) fn new(candidate: &Candidate, own_lease: &str) -> Self {
        let (candidate, own_lease) = (candidate.clone(), own_lease.into());
        Self {
            candidate,
            own_lease,
            reads: BTreeMap::new(),
            seen: BTreeMap::new(),
            log_limit: LogLimit::default(),
        }
    }

    /// Looks for dead members at each change of a lease, and when one is due. Never resolves.
    pub(crate) async fn find(mut self) {
        self.candidate.watch.synced().await;
        let mut leases = self.candidate.watch.subscribe();
        loop {
            leases.mark_unchanged();
            self.look_for_restarts();
            for identity in self.due_members() {
                self.read_pod(&identity).await;
            }
            self.delete_leases().await;
            let next = self.next_time();
            tokio::select! {
                biased;
                () = sleep_until(next) => {}
                _ = leases.changed() => {}
            }
        }
    }

    /// Records the live members, and which of them run in the Pod of an earlier one.
    fn look_for_restarts(&mut self) {
        let now = Instant::now();
        let leases = self.candidate.watch.read();
        for (member, _) in leases.oldest_renewals(&self.candidate.component, now) {
            if let Some(seen) = self.seen.get_mut(member) {
                seen.last = now;
                continue;
            }
            let is_restart = self.seen.keys().any(|earlier| pod_of(earlier) == pod_of(member));
            self.seen.insert(member.into(), Seen { last: now, restarted: is_restart.then_some(now) });
        }
        let lease_duration = self.candidate.config.lease_duration;
        self.seen.retain(|_, seen| now - seen.last < lease_duration);
    }

    /// Returns true for a process whose Pod had another one before, until its first renewals are due.
    fn has_just_restarted(&self, member: &str) -> bool {
        let restarted = self.seen.get(member).and_then(|seen| seen.restarted);
        restarted.is_some_and(|time| time.elapsed() < self.candidate.config.retry_period + OVERDUE)
    }

    /// The live members whose Pods are due to be read.
    fn due_members(&mut self) -> Vec<String> {
        let (now, times) = (Instant::now(), self.times_to_read());
        self.reads.retain(|identity, _| times.contains_key(identity));
        times.into_iter().filter(|(_, time)| *time <= now).map(|(identity, _)| identity).collect()
    }

    /// The time at which the Pod of each live member has to be read.
    fn times_to_read(&self) -> BTreeMap<String, Instant> {
        let Candidate { component, identity: own, config, .. } = &self.candidate;
        let leases = self.candidate.watch.read();
        let others =
            leases.oldest_renewals(component, Instant::now()).filter(|(member, _)| *member != own.as_str());
        let time = |(member, renewed): (&str, Instant)| {
            let overdue = renewed + config.retry_period + OVERDUE.min(config.retry_period / 2);
            let next = |read: &Instant| *read + READ_PERIOD.min(config.retry_period / 2);
            let time = match self.reads.get(member) {
                read if self.has_just_restarted(member) => read.map_or(renewed, next),
                Some(read) => overdue.max(next(read)),
                None if pod_of(member) == pod_of(own.as_str()) => renewed,
                None => overdue,
            };
            (member.to_owned(), time)
        };
        others.map(time).collect()
    }

    /// Reads the Pod of a member. If it proves the member's death, the leases of the member are free after the fence.
    async fn read_pod(&mut self, identity: &str) {
        let pod = pod_of(identity);
        let pods: Api<Pod> = Api::namespaced(self.candidate.client(), self.candidate.namespace());
        let read = timeout(self.candidate.config.retry_period, pods.get_opt(pod)).await;
        self.reads.insert(identity.into(), Instant::now());
        match read {
            Ok(Ok(Some(found))) if proves_death(&found, identity) => {
                info!(
                    member = identity,
                    pod, "the termination message of the Pod's container proves that this replica is dead"
                );
                self.candidate.watch.record_death(identity, Instant::now() + FENCE);
            }
            Ok(Ok(_)) => debug!(member = identity, pod, "renewals are overdue, and the Pod proves no death"),
            Ok(Err(error)) => {
                let error = error.to_string();
                if self.log_limit.allows(&error) {
                    warn!(
                        member = identity,
                        pod,
                        namespace = self.candidate.namespace(),
                        error,
                        "cannot read the Pod of a replica whose renewals are overdue, which requires get on pods: its leases are taken over once they expire"
                    );
                }
            }
            Err(_) => debug!(member = identity, pod, "no answer to a read of the Pod"),
        }
    }

    /// Deletes the leases of dead members, such as those of killed processes. A process that starts now cannot know
    /// that such a lease has expired, and would count its member as alive. A member that comes back creates its lease
    /// again. If a member has renewed its lease although the watch did not report that, the API server refuses.
    async fn delete_leases(&self) {
        let dead = self.candidate.watch.read().dead_members(&self.candidate.component, Instant::now());
        for (name, preconditions) in dead.into_iter().filter(|(name, _)| *name != self.own_lease) {
            let deletion = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
            let leases = self.candidate.leases();
            let deleted = timeout(self.candidate.config.retry_period, leases.delete(&name, &deletion));
            if let Ok(Err(error)) = deleted.await {
                debug!(lease = name, %error, "the lease of a dead member was not deleted");
            }
        }
    }

    /// The time of the next read or deletion. A deletion that failed is repeated after the retry period.
    fn next_time(&self) -> Instant {
        let now = Instant::now();
        let expiry = self.candidate.watch.read().next_member_expiry(&self.candidate.component, now);
        let times = self.times_to_read().into_values().chain(expiry.map(|expiry| expiry + TICK));
        times.chain([now + self.candidate.config.retry_period]).min().unwrap_or(now)
    }
}
