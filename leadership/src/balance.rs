//! The decision about each bucket of one controller: whether this process attempts to lead it, hands it over, or waits.
//!
//! A [`View`] of the observed leases and of the buckets decides, without side effects. [`Balance::step`] alone remembers
//! which members it suspects, and the elector that called it does what it returns.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use reknit_apis::internal::HashMap;
use tokio::time::Instant;

use crate::{
    assignment::assign,
    bucket::{Bucket, BucketState, Buckets},
    candidate::Candidate,
    lease::{LeaseState, Leases, ObservedMember, TICK},
    metrics::Sample,
    ring::fnv,
};

/// The time that a member has to take a free bucket that is assigned to it, from the time at which the bucket became free
/// or the member joined. After that, it counts as dead until it renews its own lease.
const TIME_TO_TAKE: Duration = Duration::from_secs(1);

/// The next action of an elector for its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Acquire the lease, or renew it.
    Attempt,
    /// Stop leading, and release the lease.
    HandOver { reason: String },
    /// Wait for a change of a lease, at most until this time.
    Wait { holder: Option<String>, until: Option<Instant> },
}

/// The members that did not take a bucket in time or let the lease of one expire, with the time of that. They count as
/// dead until they renew their own leases.
type Suspects = HashMap<String, Instant>;

/// The balance of one controller's buckets among the members, for all of its electors.
pub(crate) struct Balance {
    candidate: Candidate,
    controller: String,
    buckets: Buckets,
    suspects: Mutex<Suspects>,
    started: Instant,
}

impl Balance {
    pub(crate) fn new(candidate: Candidate, controller: &str, buckets: Buckets) -> Self {
        let (controller, started) = (controller.into(), Instant::now());
        Self { candidate, controller, buckets, suspects: Mutex::default(), started }
    }

    /// Returns true if this process may lead a bucket whose lease it has just acquired, because it still is a member.
    /// Without a watch there are no members, and the lease alone decides.
    pub(crate) fn may_lead(&self) -> bool {
        !self.candidate.watch.is_synced() || self.candidate.is_member(Instant::now())
    }

    /// Decides about the bucket with this index, and remembers the members that are late. Without a watch, a process
    /// attempts to lead every bucket.
    pub(crate) fn step(&self, bucket: usize) -> Step {
        if !self.candidate.watch.is_synced() {
            return Step::Attempt;
        }
        let (leases, buckets) = (self.candidate.watch.read(), self.buckets.read());
        let view = View { balance: self, leases: &leases, buckets: &buckets, now: Instant::now() };
        let is_led = view.is_led(bucket);
        if let Some(other) = view.user_of_other_number(is_led) {
            return match is_led {
                true => Step::HandOver { reason: format!("{other} uses another number of buckets") },
                false => Step::Wait { holder: Some(other.to_owned()), until: view.next_expiry() },
            };
        }
        let mut suspects = self.suspects.lock();
        let assignment = view.assignment(&suspects);
        let member = assignment.leaders[bucket];
        let step = match (is_led, view.other_holder(bucket)) {
            (true, _) if member == Some(view.me()) => Step::Attempt,
            (true, _) => Step::HandOver { reason: format!("assigned to {}", member.unwrap_or_default()) },
            (false, None) if member == Some(view.me()) && view.is_announced() => Step::Attempt,
            (false, holder) => Step::Wait {
                holder: holder.map(str::to_owned),
                until: view.next_expiry().into_iter().chain(assignment.next_suspicion).min(),
            },
        };
        *suspects = assignment.suspects;
        step
    }

    /// Describes why the lease of the bucket with this index can be acquired.
    pub(crate) fn reason_to_acquire(&self, bucket: usize) -> String {
        if !self.candidate.watch.is_synced() {
            return "the lease was free".into();
        }
        let leases = self.candidate.watch.read();
        match leases.get(&self.buckets.names()[bucket]).map(LeaseState::holder) {
            None => "the lease did not exist".into(),
            Some(None) => "the lease was released".into(),
            Some(Some((holder, _))) if holder == self.candidate.identity.as_str() => {
                "the lease already names this process".into()
            }
            Some(Some((holder, _))) => format!("the lease of {holder} expired"),
        }
    }

    /// Counts the buckets for a scrape. Without a watch, a bucket counts as unowned while its leader is unknown, and none
    /// is in transition.
    pub(crate) fn sample(&self) -> Sample {
        let (leases, buckets) = (self.candidate.watch.read(), self.buckets.read());
        let view = View { balance: self, leases: &leases, buckets: &buckets, now: Instant::now() };
        let is_unknown = |bucket: &&Bucket| matches!(bucket.state(), BucketState::Unknown { .. });
        let (unowned, in_transition) = match self.candidate.watch.is_synced() {
            true => view.count(&self.suspects.lock()),
            false => (buckets.iter().filter(is_unknown).count(), 0),
        };
        let is_led = buckets.iter().map(|bucket| bucket.term().is_some());
        let last_handover =
            buckets.iter().filter_map(|bucket| bucket.last_handover).max().unwrap_or(Timestamp::UNIX_EPOCH);
        Sample {
            leases: self.buckets.names().iter().cloned().zip(is_led).collect(),
            unowned,
            in_transition,
            last_handover: last_handover.as_duration().as_secs_f64(),
        }
    }
}

/// A live member that uses the same number of buckets.
#[derive(Clone, Copy)]
struct Peer<'a> {
    identity: &'a str,
    joined: Instant,
    /// The time of the last renewal of its own lease.
    renewed: Instant,
}

/// The state on which one decision is based: the observed leases, the buckets of this process, and the time.
struct View<'a> {
    balance: &'a Balance,
    leases: &'a Leases,
    buckets: &'a [Bucket],
    now: Instant,
}

/// The division of the buckets among the members.
struct Assignment<'a> {
    /// The member that has to lead the bucket of each index.
    leaders: Vec<Option<&'a str>>,
    /// The members that count as dead by now.
    suspects: Suspects,
    /// The time at which the next member counts as dead, if it takes no bucket until then.
    next_suspicion: Option<Instant>,
}

impl<'a> View<'a> {
    fn me(&self) -> &'a str {
        self.balance.candidate.identity.as_str()
    }

    fn is_led(&self, bucket: usize) -> bool {
        self.buckets[bucket].term().is_some()
    }

    fn lease(&self, bucket: usize) -> Option<&'a LeaseState> {
        self.leases.get(&self.balance.buckets.names()[bucket])
    }

    /// The holder of the bucket: this process if it leads, otherwise the unexpired holder that the lease names. That can
    /// be this process too, if an answer was lost or the process was cut off. A state of the lease from before this
    /// process's last release is ignored, because the watch may be late.
    fn holder(&self, bucket: usize) -> Option<&'a str> {
        if self.is_led(bucket) {
            return Some(self.me());
        }
        let lease = self.lease(bucket)?;
        let is_released = self.buckets[bucket].released.is_some_and(|time| lease.since <= time);
        lease.live_holder(self.now).filter(|holder| *holder != self.me() || !is_released)
    }

    fn other_holder(&self, bucket: usize) -> Option<&'a str> {
        self.holder(bucket).filter(|holder| *holder != self.me())
    }

    fn holders(&self) -> Vec<Option<&'a str>> {
        (0..self.buckets.len()).map(|bucket| self.holder(bucket)).collect()
    }

    /// Counts the buckets that no live replica leads, and those that are not led by the member they are assigned to.
    fn count(&self, suspects: &Suspects) -> (usize, usize) {
        let leader = |bucket| if self.is_led(bucket) { Some(self.me()) } else { self.other_holder(bucket) };
        let leaders: Vec<_> = (0..self.buckets.len()).map(leader).collect();
        let led = leaders.iter().filter(|leader| **leader == Some(self.me())).count();
        if self.user_of_other_number(led > 0).is_some() {
            // The processes that use the other number lead the keys until this process may lead.
            return (0, leaders.len());
        }
        if !self.is_announced() {
            let unowned = leaders.iter().filter(|leader| leader.is_none()).count();
            // A process that stops is assigned nothing. A member whose watch is silent does not know what it is assigned.
            let is_silent = self.balance.candidate.is_member(self.now);
            return (unowned, if is_silent { 0 } else { led });
        }
        let live: BTreeSet<_> = self.replicas().map(|(identity, ..)| identity).chain([self.me()]).collect();
        let is_unowned = |leader: &&Option<&str>| leader.is_none_or(|leader| !live.contains(leader));
        let unowned = leaders.iter().filter(is_unowned).count();
        let assigned = self.assignment(suspects).leaders;
        (unowned, leaders.iter().zip(assigned).filter(|(leader, member)| **leader != *member).count())
    }

    /// Divides the buckets among the members that are not suspects.
    fn assignment(&self, suspects: &Suspects) -> Assignment<'a> {
        let (holders, mut members) = (self.holders(), self.members());
        let mut suspects = suspects.clone();
        suspects.extend(self.silent_holders(&members));
        suspects.retain(|suspect, noticed| {
            members.iter().any(|member| member.identity == suspect && member.renewed <= *noticed)
        });
        loop {
            members.retain(|member| !suspects.contains_key(member.identity));
            let names: Vec<_> = members.iter().map(|member| member.identity).collect();
            let assigned = assign(&names, &holders);
            match self.next_to_suspect(&members, &holders, &assigned) {
                Some((due, late)) if due <= self.now => suspects.insert(late.to_owned(), self.now),
                next => {
                    let next_suspicion = next.map(|(due, _)| due);
                    return Assignment { leaders: assigned, suspects, next_suspicion };
                }
            };
        }
    }

    /// The live members that use the same number of buckets, including this process. Their order differs between
    /// controllers, so that one member does not get the surplus bucket of each.
    fn members(&self) -> Vec<Peer<'a>> {
        let others = self.replicas();
        let others =
            others.filter(|(identity, member, _)| *identity != self.me() && self.has_own_number(member));
        let mut members = vec![Peer { identity: self.me(), joined: self.now, renewed: self.now }];
        members.extend(others.map(|(identity, member, renewed)| Peer {
            identity,
            joined: member.joined,
            renewed,
        }));
        let controller = self.balance.controller.as_str();
        members.sort_by_cached_key(|member| (fnv(&[controller, member.identity]), member.identity));
        members
    }

    /// The members that held the lease of a bucket until it expired, and have not renewed their own leases since.
    fn silent_holders(&self, members: &[Peer]) -> impl Iterator<Item = (String, Instant)> {
        let leases = (0..self.buckets.len()).filter_map(|bucket| self.lease(bucket));
        leases
            .filter_map(LeaseState::holder)
            .filter(|(holder, expiry)| {
                let is_silent = |member: &Peer| member.identity == *holder && member.renewed <= *expiry;
                *expiry < self.now && *holder != self.me() && members.iter().any(is_silent)
            })
            .map(|(holder, expiry)| (holder.to_owned(), expiry))
    }

    /// The other member whose time to take a free bucket ends first, and this time.
    fn next_to_suspect(
        &self,
        members: &[Peer],
        holders: &[Option<&str>],
        assigned: &[Option<&'a str>],
    ) -> Option<(Instant, &'a str)> {
        let free = (0..holders.len()).filter(|bucket| holders[*bucket].is_none());
        let due = free.filter_map(|bucket| {
            let identity = assigned[bucket].filter(|member| *member != self.me())?;
            let joined = members.iter().find(|member| member.identity == identity)?.joined;
            Some((self.time_to_take_by(bucket, joined), identity))
        });
        due.min()
    }

    /// The time by which a member that joined at `joined` has to take a free bucket. For a member that joined after the
    /// last renewal of an expired lease, this is the expiry, which has passed, so the member is suspected at once: it
    /// counts the expiry from its own start and cannot take the bucket yet.
    fn time_to_take_by(&self, bucket: usize, joined: Instant) -> Instant {
        let Some(state) = self.lease(bucket) else { return self.balance.started.max(joined) + TIME_TO_TAKE };
        match state.holder() {
            Some((_, expiry)) if joined > state.since => expiry,
            _ => state.free_since().max(joined) + TIME_TO_TAKE,
        }
    }

    /// The live members that run this controller, each with the time of its last renewal.
    fn replicas(&self) -> impl Iterator<Item = (&'a str, &'a ObservedMember, Instant)> {
        let Balance { candidate, controller, .. } = self.balance;
        let replicas = self.leases.live_members(self.now);
        replicas.filter(|(_, member, _)| member.announcement.runs(&candidate.component, controller))
    }

    /// Returns true if the member uses the same number of buckets as this process.
    fn has_own_number(&self, member: &ObservedMember) -> bool {
        member.announcement.buckets == self.balance.candidate.config.buckets
    }

    /// Returns true if the other members know of this process: its lease is valid, and its own watch has reported it. By
    /// then the watch has also reported the members that announced themselves before.
    fn is_announced(&self) -> bool {
        self.balance.candidate.is_member(self.now) && self.own_order().is_some()
    }

    /// The position of this process among the members.
    fn own_order(&self) -> Option<u64> {
        let own = self.replicas().find(|(identity, ..)| *identity == self.me());
        own.filter(|(_, member, _)| self.has_own_number(member)).map(|(_, member, _)| member.order)
    }

    /// The process, if any, that uses another number of buckets and must not lead at the same time as this one: an
    /// older member or, before this process gains a bucket, the holder of a bucket with another number in its name.
    fn user_of_other_number(&self, is_led: bool) -> Option<&'a str> {
        let order = self.own_order().unwrap_or(u64::MAX);
        let mut replicas = self.replicas();
        let older = replicas.find(|(_, member, _)| member.order < order && !self.has_own_number(member));
        let buckets = self.leases.iter().filter(|(name, _)| !is_led && self.is_of_other_number(name));
        older
            .map(|(identity, ..)| identity)
            .or_else(|| buckets.filter_map(|(_, state)| state.live_holder(self.now)).next())
    }

    /// Returns true for the lease of a bucket of this controller, if there are more or fewer buckets than here.
    fn is_of_other_number(&self, lease: &str) -> bool {
        let split =
            |name: &'a str| name.rsplit_once('.').map(|(prefix, number)| (prefix, number.split_once("-of-")));
        let Some((prefix, Some((_, buckets)))) =
            self.balance.buckets.names().first().and_then(|name| split(name))
        else {
            return false;
        };
        let number = lease.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
        number.and_then(|number| number.split_once("-of-")).is_some_and(|(_, other)| other != buckets)
    }

    /// The next time at which an observed lease expires.
    fn next_expiry(&self) -> Option<Instant> {
        let expiries =
            self.leases.iter().filter_map(|(_, state)| state.holder().map(|(_, expiry)| expiry + TICK));
        expiries.filter(|expiry| *expiry > self.now).min()
    }
}
