//! The terms in which replicas led the buckets of the AddressableService controller, from the writes of the Leases.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    jiff::{SignedDuration, Timestamp},
};
use reknit::{
    leadership::{LeaderElectionConfig, Ring},
    reconciler::Key,
};

use super::audit::{LEASES, Write};

const QUEUE: &str = "addressableservices.samples.knative.dev";

/// A time in which one replica may lead a bucket.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Term {
    pub lease: String,
    /// The name of the replica.
    pub holder: String,
    /// The time of the acquisition.
    pub from: Timestamp,
    /// The time of the release, or the renew deadline after the last renewal.
    pub until: Timestamp,
    is_released: bool,
}

/// The terms of all buckets.
pub(super) struct History {
    terms: Vec<Term>,
    /// The owners of the keys, for each number of buckets that was used.
    rings: Vec<Ring>,
}

impl History {
    pub(super) fn new(writes: &[Write], renew_deadline: Duration) -> Self {
        let mut by_lease: BTreeMap<&str, Vec<LeaseSpec>> = BTreeMap::new();
        for write in writes.iter().filter(|write| write.resource == LEASES && write.is_accepted()) {
            if let Some(spec) = bucket_spec(write) {
                by_lease.entry(&write.name).or_default().push(spec);
            }
        }
        let terms = by_lease.iter().flat_map(|(lease, specs)| terms_of_lease(lease, specs, renew_deadline));
        let has_lease = |name: &String| by_lease.contains_key(name.as_str());
        let names = (1..=10).map(bucket_names).filter(|names| names.iter().any(has_lease));
        Self { rings: names.map(Ring::new).collect(), terms: terms.collect() }
    }

    /// The terms of the buckets that own the key, in the order in which they began.
    pub(super) fn terms_of(&self, key: &Key) -> Vec<&Term> {
        let owners: Vec<_> = self.rings.iter().map(|ring| ring.owner(key)).collect();
        let mut terms: Vec<_> =
            self.terms.iter().filter(|term| owners.contains(&term.lease.as_str())).collect();
        terms.sort_by_key(|term| term.from);
        terms
    }

    /// Returns true if the replica led the key at that time.
    pub(super) fn is_leader(&self, replica: &str, key: &Key, time: Timestamp) -> bool {
        self.terms_of(key)
            .iter()
            .any(|term| term.holder == replica && (term.from..=term.until).contains(&time))
    }

    /// Returns true if a term of the replica expired at most this long before that time, and no other replica has led the
    /// key since. A term that the replica released has ended after its last write.
    pub(super) fn has_just_led(
        &self,
        replica: &str,
        key: &Key,
        time: Timestamp,
        within: SignedDuration,
    ) -> bool {
        let terms = self.terms_of(key);
        let ended =
            terms.iter().filter(|term| term.holder == replica && !term.is_released).map(|term| term.until);
        let last_ended = ended.filter(|until| (*until..=*until + within).contains(&time)).max();
        let has_followed = |until: Timestamp| {
            terms.iter().any(|term| term.holder != replica && (until..=time).contains(&term.from))
        };
        last_ended.is_some_and(|until| !has_followed(until))
    }

    /// The number of terms that began after that time.
    pub(super) fn terms_since(&self, time: Timestamp) -> usize {
        self.terms.iter().filter(|term| term.from > time).count()
    }

    pub(super) fn terms(&self) -> &[Term] {
        &self.terms
    }
}

/// The names of the Leases of the controller's buckets.
pub(super) fn bucket_names(buckets: u32) -> Vec<String> {
    LeaderElectionConfig { buckets, ..Default::default() }.bucket_names("controller", QUEUE)
}

/// The name of the replica with this identity as a holder.
pub(super) fn replica_name(holder: &str) -> &str {
    holder.split('_').next().unwrap_or_default()
}

/// The spec of the Lease of a bucket. `None` for the Lease of a member or of another controller.
fn bucket_spec(write: &Write) -> Option<LeaseSpec> {
    let is_ours = write.name.starts_with(&format!("controller.{QUEUE}."));
    let lease: Lease = is_ours.then(|| serde_json::from_value(write.object.clone()).expect("a Lease"))?;
    lease.spec
}

/// Derives the terms from the states of one Lease.
fn terms_of_lease(lease: &str, specs: &[LeaseSpec], renew_deadline: Duration) -> Vec<Term> {
    let renew_deadline = SignedDuration::try_from(renew_deadline).expect("a duration");
    let mut terms: Vec<Term> = Vec::new();
    let mut is_held = false;
    for spec in specs {
        let renewed = spec.renew_time.as_ref().expect("a renewTime").0;
        let holder = replica_name(spec.holder_identity.as_deref().unwrap_or_default());
        let last = terms.last_mut().filter(|_| is_held);
        match last {
            Some(term) if holder.is_empty() => {
                (term.until, term.is_released) = (term.until.min(renewed), true);
            }
            Some(term) if term.holder == holder && renewed <= term.until => {
                term.until = renewed + renew_deadline;
            }
            _ if holder.is_empty() => {}
            _ => terms.push(Term {
                lease: lease.to_owned(),
                holder: holder.to_owned(),
                from: renewed,
                until: renewed + renew_deadline,
                is_released: false,
            }),
        }
        is_held = !holder.is_empty();
    }
    terms
}
