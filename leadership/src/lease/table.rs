//! The Leases of the system namespace as this process observed them.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{ResourceExt, api::Preconditions};
use reknit_apis::internal::HashMap;
use tokio::time::Instant;
use tracing::warn;

use super::{Announcement, LeaseState};

/// The maximum number of characters of a holder in a warning. An edited lease may have a very long one.
const MAX_LOGGED_HOLDER: usize = 300;

/// The observed leases by name, and the announcements in the leases of members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    states: BTreeMap<String, LeaseState>,
    /// The leases that were deleted while they were held, each with the time of that.
    deleted: BTreeMap<String, Instant>,
    members: BTreeMap<String, ObservedMember>,
    /// The holders that were proven dead, each with the time from which its leases are free.
    dead: BTreeMap<String, Instant>,
    /// The number of members that were observed so far.
    observed_members: u64,
}

/// A member as observed.
#[derive(Clone, Debug)]
pub(crate) struct ObservedMember {
    pub(crate) announcement: Announcement,
    /// The position in the order in which members were observed. It is the order in which the API server created their
    /// leases, except among those of the first list.
    pub(crate) order: u64,
    /// The time at which this process first observed the member.
    pub(crate) joined: Instant,
}

impl Leases {
    pub(crate) fn get(&self, name: &str) -> Option<&LeaseState> {
        self.states.get(name)
    }

    /// Returns true if the lease was deleted after this time, or got another holder than this one, or less time than this.
    /// So the late report of an own write is no change.
    pub(crate) fn is_edited_since(
        &self,
        time: Instant,
        name: &str,
        holder: &str,
        duration: Duration,
    ) -> bool {
        let is_kept = |state: &LeaseState| {
            let least = state.since + Duration::from_secs(duration.as_secs()); // Leases have whole seconds
            state.holder().is_some_and(|(found, expiry)| found == holder && expiry >= least)
        };
        self.deleted.get(name).is_some_and(|deleted| *deleted > time)
            || self.get(name).is_some_and(|state| state.since > time && !is_kept(state))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &LeaseState)> {
        self.states.iter().map(|(name, state)| (name.as_str(), state))
    }

    /// The members whose leases have not expired, each with its identity and the time of its last renewal.
    pub(crate) fn live_members(
        &self,
        now: Instant,
    ) -> impl Iterator<Item = (&str, &ObservedMember, Instant)> {
        self.members.iter().filter_map(move |(name, member)| {
            let state = self.states.get(name)?;
            Some((state.live_holder(now)?, member, state.since))
        })
    }

    /// The names of the expired leases of this component's members, with the preconditions to delete exactly the state
    /// that was observed.
    pub(crate) fn dead_members(&self, component: &str, now: Instant) -> Vec<(String, Preconditions)> {
        let dead = self.states_of_members(component).filter(|(_, state)| state.live_holder(now).is_none());
        let preconditions = |state: &LeaseState| Preconditions {
            uid: state.uid.clone(),
            resource_version: state.version.clone(),
        };
        dead.map(|(name, state)| (name.to_owned(), preconditions(state))).collect()
    }

    /// The time at which the next lease of this component's members expires.
    pub(crate) fn next_member_expiry(&self, component: &str, now: Instant) -> Option<Instant> {
        self.states_of_members(component)
            .map(|(_, state)| state.free_since())
            .filter(|expiry| *expiry >= now)
            .min()
    }

    fn states_of_members(&self, component: &str) -> impl Iterator<Item = (&str, &LeaseState)> {
        let members =
            self.members.iter().filter(move |(_, member)| member.announcement.component == component);
        members.filter_map(|(name, _)| Some((name.as_str(), self.states.get(name)?)))
    }

    /// Records a state of a lease. Returns true if it is new.
    pub(crate) fn record(&mut self, lease: &Lease, now: Instant) -> bool {
        let name = lease.name_any();
        self.deleted.remove(&name);
        let is_new_announcement = self.record_announcement(&name, lease, now);
        if let Some(state) = self.states.get_mut(&name).filter(|state| state.is_state_of(lease)) {
            state.version = lease.resource_version();
            return is_new_announcement;
        }
        let mut state = LeaseState::new(lease, now);
        state.freed = state.holder().and_then(|(holder, _)| self.dead.get(holder).copied());
        self.warn_of_excess(&name, &state);
        self.states.insert(name, state);
        true
    }

    /// Logs a warning if a lease of the elections was written to last for longer than one may, but not of each renewal.
    fn warn_of_excess(&self, name: &str, state: &LeaseState) {
        let is_of_election = self.members.contains_key(name) || is_bucket_name(name);
        let Some(duration) = state.excessive_duration().filter(|_| is_of_election) else { return };
        let holder = state.spec.holder_identity.as_deref().unwrap_or_default();
        let is_repeated =
            |last: &LeaseState| last.names(holder) && last.excessive_duration() == Some(duration);
        if !holder.is_empty() && !self.get(name).is_some_and(is_repeated) {
            let holder: String = holder.chars().take(MAX_LOGGED_HOLDER).collect();
            warn!(
                lease = name,
                holder,
                duration = ?duration,
                "a lease was written to last for longer than ten minutes, which no replica does: it counts as held for ten \
                 minutes from now; find out who wrote it, and clear its holderIdentity if no such process runs"
            );
        }
    }

    /// Records that a holder was proven dead, so that its leases are free from this time on, even if a renewal arrives
    /// late. Holders that no lease names any more are forgotten.
    pub(crate) fn record_death(&mut self, holder: &str, free: Instant) {
        let states = &mut self.states;
        self.dead.retain(|dead, _| states.values().any(|state| state.names(dead)));
        self.dead.insert(holder.into(), free);
        states.values_mut().filter(|state| state.names(holder)).for_each(|state| state.freed = Some(free));
    }

    /// The live members of this component, each with the last renewal of the lease that it renews next. Members that were
    /// proven dead are left out.
    pub(crate) fn oldest_renewals(
        &self,
        component: &str,
        now: Instant,
    ) -> impl Iterator<Item = (&str, Instant)> {
        let mut oldest: HashMap<&str, Instant> = HashMap::default();
        let held = self.states.values().filter_map(|state| Some((state.live_holder(now)?, state.since)));
        for (holder, since) in held {
            oldest.entry(holder).and_modify(|oldest| *oldest = since.min(*oldest)).or_insert(since);
        }
        let alive = self.states_of_members(component).filter(|(_, state)| state.freed.is_none());
        alive.filter_map(move |(_, state)| {
            let member = state.live_holder(now)?;
            Some((member, *oldest.get(member)?))
        })
    }

    /// Records the announcement in a lease, or its absence. Returns true if this changes the members.
    fn record_announcement(&mut self, name: &str, lease: &Lease, now: Instant) -> bool {
        let Some(announcement) = Announcement::of(lease) else { return self.members.remove(name).is_some() };
        match self.members.get_mut(name) {
            Some(member) if member.announcement == announcement => false,
            Some(member) => {
                member.announcement = announcement;
                true
            }
            None => {
                let order = self.observed_members;
                self.observed_members += 1;
                self.members.insert(name.into(), ObservedMember { announcement, order, joined: now });
                true
            }
        }
    }

    /// Records the deletion of a lease. A deleted lease of a bucket counts as held until it would have expired, because
    /// its holder may not know of the deletion. A member that leaves deletes its own lease. Always returns true.
    pub(crate) fn record_deletion(&mut self, name: &str, now: Instant) -> bool {
        if self.members.remove(name).is_some() {
            self.states.remove(name);
        }
        self.deleted.insert(name.into(), now);
        self.forget_expired(now);
        true
    }

    /// Forgets the deleted leases that are not held any more.
    fn forget_expired(&mut self, now: Instant) {
        let states = &mut self.states;
        self.deleted.retain(|name, _| {
            let is_held = states.get(name).is_some_and(|state| state.live_holder(now).is_some());
            if !is_held {
                states.remove(name);
            }
            is_held
        });
    }
}

/// Returns true for the name of a bucket's lease, of any controller.
fn is_bucket_name(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = name.rsplit_once('.').and_then(|(_, number)| number.split_once("-of-"));
    number.is_some_and(|(bucket, buckets)| is_number(bucket) && is_number(buckets))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn held(name: &str) -> Lease {
        let spec = json!({"holderIdentity": "other", "leaseDurationSeconds": 15});
        serde_json::from_value(json!({"metadata": {"name": name, "uid": name}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_lease_that_was_deleted_while_it_was_held_is_kept_until_it_would_have_expired() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        for name in ["a", "b", "again"] {
            leases.record(&held(name), now);
            leases.record_deletion(name, now);
        }
        assert_eq!(leases.states.len(), 3);
        leases.record(&held("again"), now);
        leases.record_deletion("c", now + Duration::from_secs(16));
        assert_eq!(leases.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["again"]);
        assert!(leases.deleted.is_empty());
    }
}
