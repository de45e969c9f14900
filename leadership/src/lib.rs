//! Leader election: the replicas share the buckets of each controller's keys, with one Lease for each bucket.
//!
//! Each elector repeats these steps for its bucket. A step is a file, and only the elector writes the state of a bucket:
//!
//! 1. `lease` observes the Leases of the system namespace, and writes them safely.
//! 2. `balance` decides from the observed Leases, and the state of this process's buckets, whether this process has to
//!    lead a bucket, to hand it over, or to wait. `assignment` divides the buckets among the members.
//! 3. `elector` does that: it acquires, renews and releases the Lease of one bucket.
//! 4. `bucket` holds the state of each bucket, which the elector writes.
//! 5. [`Leadership`] is what a controller reads of it: the keys that this process leads.
//!
//! A pass is dropped when its term ends, and the last layer of the transport (`within_term` of `reknit_injection`) begins no
//! request after it.
//!
//! A *candidate* is this process. A *member* is a process that announced itself by a Lease of its own. A *peer* is a live
//! member of the same controller with the same number of buckets.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod assignment;
mod balance;
mod bucket;
mod candidate;
mod config;
mod dead_members;
mod elector;
mod electors;
mod error;
#[cfg(test)]
mod fake;
mod heartbeat;
mod identity;
mod last_writes;
mod leadership;
mod lease;
mod member;
mod metrics;
mod moment;
mod retries;
mod ring;
mod selections;
mod stateful;
#[cfg(test)]
mod tests;

pub use self::{
    config::{ConfigError, LeaderElectionConfig},
    leadership::{Change, Leadership},
    ring::Ring,
};

/// Items for the other crates of reknit. They are not part of the public API, and may change in any release.
#[doc(hidden)]
pub mod internal {
    use std::sync::Arc;

    use crate::bucket::Buckets;
    pub use crate::{
        bucket::{BucketState, BucketWriter, LedPass},
        candidate::{Candidate, lease_client, permissions},
        electors::Electors,
        error::Error,
        heartbeat::Heartbeat,
        identity::Identity,
        leadership::Leadership,
        member::Member,
        stateful::StatefulReplica,
    };

    /// For tests: creates a leadership whose buckets have these names, and one writer for each bucket.
    pub fn elected(names: Vec<Arc<str>>) -> (Leadership, Vec<BucketWriter>) {
        let buckets = Buckets::unknown(names);
        let lease_duration = crate::LeaderElectionConfig::default().lease_duration;
        (Leadership::of(buckets.clone(), lease_duration), buckets.writers(&Identity::on("test")))
    }
}
