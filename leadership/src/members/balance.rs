//! The decision about each bucket of one controller: whether this process attempts to lead it, hands it over, or waits.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{Membership, assignment::assign};
use crate::{
    bucket::{BucketState, Leader},
    lease::{LeaseState, LeaseWatch, Leases, ObservedMember},
    ring::fnv,
};

/// The time that a member has to take a free bucket that is assigned to it, from the time at which the bucket became free
/// or the member joined. After that, it counts as dead until it renews its own lease.
const TIME_TO_TAKE: Duration = Duration::from_secs(1);
/// Added to each time at which a lease expires, because a lease is still held at that time.
pub(super) const TICK: Duration = Duration::from_millis(1);

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

/// The numbers of one controller's buckets in each state, as this process observes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketCounts {
    /// The buckets that this process leads.
    pub(crate) led: usize,
    /// The buckets that no live process leads.
    pub(crate) unowned: usize,
    /// The buckets that are not led by the member they are assigned to.
    pub(crate) in_transition: usize,
}

/// The assignment of one controller's buckets, for all of its electors.
pub(crate) struct Balance {
    /// The names of the buckets and of their leases.
    names: Vec<Arc<str>>,
    membership: Membership,
    watch: LeaseWatch,
    /// The members that did not take a bucket in time or let the lease of one expire, with the time at which this was
    /// noticed.
    suspects: Mutex<HashMap<String, Instant>>,
    /// When this process last released each bucket. The watch may not have reported the release yet.
    released: Mutex<HashMap<usize, Instant>>,
    started: Instant,
}

impl Balance {
    pub(crate) fn new(names: Vec<Arc<str>>, membership: Membership, watch: LeaseWatch) -> Self {
        Self {
            names,
            membership,
            watch,
            suspects: Mutex::default(),
            released: Mutex::default(),
            started: Instant::now(),
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Leases> {
        self.watch.subscribe()
    }

    pub(crate) async fn wait_until_synced(&self, limit: Duration) {
        self.watch.wait_until_synced(limit).await;
    }

    /// Returns true if this process may lead a bucket whose lease it has just acquired, because it still is a member.
    /// Without a watch there are no members, and the lease alone decides.
    pub(crate) fn may_lead(&self) -> bool {
        !self.watch.is_synced() || self.membership.is_valid(Instant::now())
    }

    /// Records that this process has released the bucket with this index.
    pub(crate) fn record_release(&self, bucket: usize) {
        self.released.lock().insert(bucket, Instant::now());
    }

    /// Decides about the bucket with this index. `led` has one value for each bucket of the controller: true if this
    /// process leads it. Without a watch, a process attempts to lead every bucket.
    pub(crate) fn step(&self, bucket: usize, led: &[bool], now: Instant) -> Step {
        if !self.watch.is_synced() {
            return Step::Attempt;
        }
        let leases = self.watch.subscribe();
        let view = View { balance: self, leases: &leases.borrow(), led, now };
        view.step(bucket)
    }

    /// Describes why the lease of the bucket with this index can be acquired.
    pub(crate) fn reason_to_acquire(&self, bucket: usize) -> String {
        if !self.watch.is_synced() {
            return "the lease was free".into();
        }
        let state = self.names.get(bucket).and_then(|name| self.watch.state(name));
        match state.as_ref().map(LeaseState::holder) {
            None => "the lease did not exist".into(),
            Some(None) => "the lease was released".into(),
            Some(Some((holder, _))) if holder == self.membership.identity() => {
                "the lease already names this process".into()
            }
            Some(Some((holder, _))) => format!("the lease of {holder} expired"),
        }
    }

    /// Counts the buckets. Without a watch, a bucket counts as unowned while its leader is unknown, and none is in
    /// transition.
    pub(crate) fn count(&self, states: &[BucketState], now: Instant) -> BucketCounts {
        let led: Vec<_> = states.iter().map(|state| state.current_term().is_some()).collect();
        if !self.watch.is_synced() {
            let is_unowned = |state: &&BucketState| matches!(state.leader(), Leader::Unknown { .. });
            let unowned = states.iter().filter(is_unowned).count();
            return BucketCounts { led: count_true(&led), unowned, in_transition: 0 };
        }
        let leases = self.watch.subscribe();
        let view = View { balance: self, leases: &leases.borrow(), led: &led, now };
        view.count()
    }
}

fn count_true(values: &[bool]) -> usize {
    values.iter().filter(|value| **value).count()
}

/// A live member that uses the same number of buckets.
#[derive(Clone, Copy)]
struct Peer<'a> {
    identity: &'a str,
    joined: Instant,
    /// The time of the last renewal of its own lease.
    renewed: Instant,
}

/// The state on which one decision is based: the observed leases, the buckets that this process leads, and the time.
struct View<'a> {
    balance: &'a Balance,
    leases: &'a Leases,
    led: &'a [bool],
    now: Instant,
}

impl<'a> View<'a> {
    fn step(&self, bucket: usize) -> Step {
        let is_led = self.led.get(bucket).copied().unwrap_or_default();
        let may_gain = self.membership().is_announced(self.leases, self.now);
        if let Some(other) = self.user_of_other_number(is_led) {
            let reason = format!("{other} uses another number of buckets");
            let holder = Some(other.to_owned());
            return if is_led {
                Step::HandOver { reason }
            } else {
                Step::Wait { holder, until: self.next_expiry() }
            };
        }
        let (assigned, next_suspicion) = self.assignment();
        let member = assigned.get(bucket).copied().flatten();
        let is_assigned = member == Some(self.me());
        match (is_led, self.other_holder(bucket)) {
            (true, _) if is_assigned => Step::Attempt,
            (true, _) => Step::HandOver { reason: format!("assigned to {}", member.unwrap_or_default()) },
            (false, None) if is_assigned && may_gain => Step::Attempt,
            _ => self.wait(bucket, next_suspicion),
        }
    }

    fn count(&self) -> BucketCounts {
        let (led, buckets) = (count_true(self.led), self.led.len());
        if self.user_of_other_number(led > 0).is_some() {
            // The processes that use the other number lead the keys until this process may lead.
            return BucketCounts { led, unowned: 0, in_transition: buckets };
        }
        let leaders: Vec<_> = (0..buckets).map(|bucket| self.leader(bucket)).collect();
        let unowned = leaders.iter().filter(|leader| leader.is_none()).count();
        let in_transition = if self.membership().is_announced(self.leases, self.now) {
            leaders.iter().zip(self.assignment().0).filter(|(leader, assigned)| **leader != *assigned).count()
        } else {
            // A process that stops is assigned nothing.
            led
        };
        BucketCounts { led, unowned, in_transition }
    }

    fn wait(&self, bucket: usize, next_suspicion: Option<Instant>) -> Step {
        let holder = self.other_holder(bucket).map(str::to_owned);
        Step::Wait { holder, until: self.next_expiry().into_iter().chain(next_suspicion).min() }
    }

    fn me(&self) -> &'a str {
        self.membership().identity()
    }

    fn membership(&self) -> &'a Membership {
        &self.balance.membership
    }

    fn state(&self, bucket: usize) -> Option<&'a LeaseState> {
        self.leases.get(self.balance.names.get(bucket)?)
    }

    /// The holder of the lease. It can be this process even if this process does not lead: it was cut off from the API
    /// server, or an answer was lost.
    fn holder(&self, bucket: usize) -> Option<&'a str> {
        let state = self.state(bucket)?;
        let is_released =
            || self.balance.released.lock().get(&bucket).is_some_and(|time| state.since <= *time);
        state.live_holder(self.now).filter(|holder| *holder != self.me() || !is_released())
    }

    fn other_holder(&self, bucket: usize) -> Option<&'a str> {
        self.holder(bucket).filter(|holder| *holder != self.me())
    }

    /// The process that leads the bucket.
    fn leader(&self, bucket: usize) -> Option<&'a str> {
        let is_led = self.led.get(bucket).copied().unwrap_or_default();
        if is_led { Some(self.me()) } else { self.other_holder(bucket) }
    }

    /// The holder of each bucket. It is this process for each bucket that this process leads.
    fn holders(&self) -> Vec<Option<&'a str>> {
        let holder =
            |(bucket, is_led): (usize, &bool)| if *is_led { Some(self.me()) } else { self.holder(bucket) };
        self.led.iter().enumerate().map(holder).collect()
    }

    /// The live members that use the same number of buckets, including this process. Their order differs between
    /// controllers, so that one member does not get the surplus bucket of each.
    fn members(&self) -> Vec<Peer<'a>> {
        let others = self.leases.live_members(self.now).filter(|(identity, member, _)| {
            *identity != self.me() && self.membership().is_peer(&member.announcement)
        });
        let peer = |(identity, member, renewed): (&'a str, &ObservedMember, Instant)| Peer {
            identity,
            joined: member.joined,
            renewed,
        };
        let mut members: Vec<_> = others.map(peer).collect();
        members.push(Peer { identity: self.me(), joined: self.now, renewed: self.now });
        members.sort_by_cached_key(|member| {
            (fnv(&[self.membership().controller(), member.identity]), member.identity)
        });
        members
    }

    /// The member that has to lead each bucket, and the time at which the next member would count as dead.
    fn assignment(&self) -> (Vec<Option<&'a str>>, Option<Instant>) {
        let holders = self.holders();
        let mut members = self.members();
        let mut suspects = self.balance.suspects.lock();
        suspects.retain(|suspect, _| members.iter().any(|member| member.identity == suspect));
        self.suspect_holders_of_expired_leases(&members, &mut suspects);
        members
            .retain(|member| suspects.get(member.identity).is_none_or(|noticed| *noticed < member.renewed));
        loop {
            let names: Vec<_> = members.iter().map(|member| member.identity).collect();
            let assigned = assign(&names, &holders);
            let Some((due, late)) = self.next_to_suspect(&members, &holders, &assigned) else {
                return (assigned, None);
            };
            if due > self.now {
                return (assigned, Some(due));
            }
            suspects.insert(late.to_owned(), self.now);
            members.retain(|member| member.identity != late);
        }
    }

    /// Suspects each member that held the lease of a bucket until it expired, and has not renewed its own lease since.
    fn suspect_holders_of_expired_leases(&self, members: &[Peer], suspects: &mut HashMap<String, Instant>) {
        let states = (0..self.led.len()).filter_map(|bucket| self.state(bucket));
        for (holder, expiry) in states.filter_map(LeaseState::holder).filter(|(_, expiry)| *expiry < self.now)
        {
            let is_silent = |member: &Peer| member.identity == holder && member.renewed <= expiry;
            if holder != self.me() && members.iter().any(is_silent) {
                suspects.insert(holder.to_owned(), expiry);
            }
        }
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

    /// The time by which a member that joined at `joined` has to take a free bucket. A member that joined after the last
    /// renewal of an expired lease gets no time: it measures the expiry from its own start, so it cannot take the bucket
    /// yet.
    fn time_to_take_by(&self, bucket: usize, joined: Instant) -> Instant {
        let Some(state) = self.state(bucket) else { return self.balance.started.max(joined) + TIME_TO_TAKE };
        match state.holder() {
            Some((_, expiry)) if joined > state.since => expiry,
            _ => state.free_since().max(joined) + TIME_TO_TAKE,
        }
    }

    /// The process, if any, that uses another number of buckets and must not lead at the same time as this one: an
    /// older member or, before this process gains a bucket, the holder of a bucket with another number in its name.
    fn user_of_other_number(&self, is_led: bool) -> Option<&'a str> {
        let older = self.membership().older_member_of_other_number(self.leases, self.now);
        let buckets = self.leases.iter().filter(|(name, _)| !is_led && self.is_of_other_number(name));
        older.or_else(|| buckets.filter_map(|(_, state)| state.live_holder(self.now)).next())
    }

    /// Returns true for the lease of a bucket of this controller, if there are more or fewer buckets than here.
    fn is_of_other_number(&self, lease: &str) -> bool {
        let split =
            |name: &'a str| name.rsplit_once('.').map(|(prefix, number)| (prefix, number.split_once("-of-")));
        let Some((prefix, Some((_, buckets)))) = self.balance.names.first().and_then(|name| split(name))
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
