//! The membership of this process in the elections of its component, as its electors see it.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Announcement;
use crate::lease::Leases;

/// The membership of this process, for the electors of one controller. Clones share the membership.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    identity: Arc<str>,
    component: Arc<str>,
    controller: Arc<str>,
    buckets: u32,
    /// The time until which this process can rely on being known to the other members. `None` before the first
    /// announcement.
    valid_until: Arc<Mutex<Option<Instant>>>,
}

impl Membership {
    pub(crate) fn new(
        identity: &str,
        component: &str,
        controller: &str,
        buckets: u32,
        valid_until: Arc<Mutex<Option<Instant>>>,
    ) -> Self {
        let (identity, component, controller) = (identity.into(), component.into(), controller.into());
        Self { identity, component, controller, buckets, valid_until }
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    pub(crate) fn controller(&self) -> &str {
        &self.controller
    }

    /// Returns true if the other members know of this process: its lease is valid, and its own watch has reported it. By
    /// then the watch has also reported the members that announced themselves before.
    pub(crate) fn is_announced(&self, leases: &Leases, now: Instant) -> bool {
        self.is_valid(now) && self.order(leases, now).is_some()
    }

    /// Returns true before the renew deadline of this process's own lease.
    pub(crate) fn is_valid(&self, now: Instant) -> bool {
        self.valid_until.lock().is_some_and(|until| now < until)
    }

    /// Returns true if the member runs this controller with the same number of buckets.
    pub(crate) fn is_peer(&self, other: &Announcement) -> bool {
        other.runs(&self.component, &self.controller) && other.buckets == self.buckets
    }

    /// The identity of a live member that announced itself before this process, and runs this controller with another
    /// number of buckets.
    pub(crate) fn older_member_of_other_number<'a>(
        &self,
        leases: &'a Leases,
        now: Instant,
    ) -> Option<&'a str> {
        let order = self.order(leases, now).unwrap_or(u64::MAX);
        let mut others = leases.live_members(now).filter(|(_, member, _)| {
            let other = &member.announcement;
            member.order < order
                && other.runs(&self.component, &self.controller)
                && other.buckets != self.buckets
        });
        others.next().map(|(identity, ..)| identity)
    }

    /// The position of this process among the members.
    fn order(&self, leases: &Leases, now: Instant) -> Option<u64> {
        let mut members = leases.live_members(now);
        let own = members
            .find(|(identity, member, _)| **identity == *self.identity && self.is_peer(&member.announcement));
        own.map(|(_, member, _)| member.order)
    }
}
