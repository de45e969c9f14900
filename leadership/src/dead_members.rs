//! Finds the members that died, and deletes their leases.
//!
//! A member counts as dead once its lease has expired, or earlier if its Pod [proves](proves_death) its death. The Pod is
//! read once a renewal of the member is overdue, and then every second. A process that is restarted in the same Pod reads
//! that Pod at once. The Pod of a restarted process is read every second from the start, since a process that crashed may
//! soon crash again, and its leases are so new that no renewal is due. A process reads ten Pods a second at most, and first
//! those that are due for longest, since whoever may write Leases can make up any number of members.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};
use reknit_apis::dns_subdomain;
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

/// The maximum number of reads that start within [`READ_PERIOD`].
const MAX_READS: usize = 10;

pub(crate) struct DeadMembers {
    candidate: Candidate,
    /// The earliest time of the next read of the Pod of each live member.
    next_reads: BTreeMap<String, Instant>,
    /// The times of the reads that started within the last [`READ_PERIOD`], oldest first.
    last_reads: VecDeque<Instant>,
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
    pub(crate) fn new(candidate: &Candidate) -> Self {
        let (candidate, log_limit) = (candidate.clone(), LogLimit::default());
        let (next_reads, last_reads, seen) = (BTreeMap::new(), VecDeque::new(), BTreeMap::new());
        Self { candidate, next_reads, last_reads, seen, log_limit }
    }

    /// Reads Pods at each change of a lease, and when one is due. An answer that does not come delays no other read. Never
    /// resolves.
    pub(crate) async fn find(mut self) {
        self.candidate.watch.synced().await;
        let mut leases = self.candidate.watch.subscribe();
        let mut reads = FuturesUnordered::new();
        loop {
            leases.mark_unchanged();
            self.look_for_restarts();
            for identity in self.due_members() {
                self.next_reads.insert(identity.clone(), Instant::now() + self.candidate.config.retry_period);
                self.last_reads.push_back(Instant::now());
                reads.push(read_pod(self.candidate.clone(), identity));
            }
            let next = self.next_time();
            tokio::select! {
                biased;
                Some((identity, read)) = reads.next() => self.finish_read(identity, read),
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

    /// The live members whose Pods are due to be read, as many as may be read now.
    fn due_members(&mut self) -> Vec<String> {
        let (now, times) = (Instant::now(), self.times_to_read());
        self.next_reads.retain(|identity, _| times.contains_key(identity));
        self.last_reads.retain(|read| now - *read < READ_PERIOD);
        let mut due: Vec<_> = times.into_iter().filter(|(_, time)| *time <= now).collect();
        due.sort_by_key(|(_, time)| *time);
        due.truncate(MAX_READS.saturating_sub(self.last_reads.len()));
        due.into_iter().map(|(identity, _)| identity).collect()
    }

    /// The time at which the Pod of each live member has to be read.
    fn times_to_read(&self) -> BTreeMap<String, Instant> {
        let Candidate { component, identity: own, config, .. } = &self.candidate;
        let leases = self.candidate.watch.read();
        let others =
            leases.oldest_renewals(component, Instant::now()).filter(|(member, _)| *member != own.as_str());
        let time = |(member, renewed): (&str, Instant)| {
            let overdue = renewed + config.retry_period + OVERDUE.min(config.retry_period / 2);
            let time = match self.next_reads.get(member) {
                next if self.has_just_restarted(member) => next.map_or(renewed, |next| *next),
                Some(next) => overdue.max(*next),
                None if pod_of(member) == pod_of(own.as_str()) => renewed,
                None => overdue,
            };
            (member.to_owned(), time)
        };
        others.map(time).collect()
    }

    fn finish_read(&mut self, identity: String, read: kube::Result<()>) {
        if let Err(error) = read {
            self.log_refusal(&identity, &error);
        }
        let period = READ_PERIOD.min(self.candidate.config.retry_period / 2);
        self.next_reads.insert(identity, Instant::now() + period);
    }

    fn log_refusal(&mut self, identity: &str, error: &kube::Error) {
        let error = error.to_string();
        if self.log_limit.allows(&error) {
            warn!(
                member = identity,
                pod = pod_of(identity),
                namespace = self.candidate.namespace(),
                error,
                "cannot read the Pod of a replica whose renewals are overdue, which requires get on pods: its leases are taken over once they expire"
            );
        }
    }

    /// The time of the next read. New members are looked for at least once in a retry period.
    fn next_time(&self) -> Instant {
        let latest = Instant::now() + self.candidate.config.retry_period;
        let due = self.times_to_read().into_values().min().map_or(latest, |time| time.min(latest));
        let oldest_read = self.last_reads.front().filter(|_| self.last_reads.len() >= MAX_READS);
        oldest_read.map_or(due, |read| due.max(*read + READ_PERIOD))
    }
}

/// Reads the Pod of a member, and returns its identity. If the Pod proves the member's death, the leases of the member are
/// free after the fence.
async fn read_pod(candidate: Candidate, identity: String) -> (String, kube::Result<()>) {
    let (pod, member) = (pod_of(&identity), &identity);
    if !dns_subdomain(pod).is_empty() {
        return (identity, Ok(())); // an edited holder: no Pod has this name, which must not become part of a URL
    }
    let pods: Api<Pod> = Api::namespaced(candidate.client(), candidate.namespace());
    match timeout(candidate.config.retry_period, pods.get_opt(pod)).await {
        Ok(Ok(Some(found))) if proves_death(&found, member) => {
            info!(
                member,
                pod, "the termination message of the Pod's container proves that this replica is dead"
            );
            candidate.watch.record_death(member, Instant::now() + FENCE);
        }
        Ok(Ok(_)) => debug!(member, pod, "renewals are overdue, and the Pod proves no death"),
        Ok(Err(error)) => return (identity, Err(error)),
        Err(_) => debug!(member, pod, "no answer to a read of the Pod"),
    }
    (identity, Ok(()))
}

/// Deletes the leases of dead members, such as those of killed processes, but not that of this process. A process that
/// starts now cannot know that such a lease has expired, and would count its member as alive. A member that comes back
/// creates its lease again. If a member has renewed its lease although the watch did not report that, the API server
/// refuses. A deletion that failed is repeated after the retry period. Never resolves.
pub(crate) async fn delete_leases(candidate: &Candidate, own_lease: &str) {
    let Candidate { watch, component, config, .. } = candidate;
    watch.synced().await;
    let mut leases = watch.subscribe();
    loop {
        leases.mark_unchanged();
        let dead = watch.read().dead_members(component, Instant::now());
        let others = dead.into_iter().filter(|(name, _)| name != own_lease);
        join_all(others.map(|(name, preconditions)| delete_lease(candidate, name, preconditions))).await;
        let latest = Instant::now() + config.retry_period;
        let expiry = watch.read().next_member_expiry(component, Instant::now());
        tokio::select! {
            biased;
            () = sleep_until(expiry.map_or(latest, |expiry| latest.min(expiry + TICK))) => {}
            _ = leases.changed() => {}
        }
    }
}

async fn delete_lease(candidate: &Candidate, name: String, preconditions: Preconditions) {
    let deletion = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
    let leases = candidate.leases();
    let deleted = timeout(candidate.config.retry_period, leases.delete(&name, &deletion));
    if let Ok(Err(error)) = deleted.await {
        debug!(lease = name, %error, "the lease of a dead member was not deleted");
    }
}
