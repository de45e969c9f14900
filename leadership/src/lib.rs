//! Leader election: the replicas share the buckets of each controller's keys, with one Lease for each bucket.
//!
//! - `lease` observes Leases and writes them safely.
//! - `members` announces this process to the other replicas, and divides the buckets.
//! - `elector` acquires, renews and hands over the Lease of one bucket.
//! - `bucket` holds the state of a bucket, which electors write and a controller reads by its [`Leadership`].

mod bucket;
mod candidate;
mod config;
mod elector;
mod error;
#[cfg(test)]
mod fake;
mod identity;
mod leadership;
mod lease;
mod members;
mod metrics;
mod permissions;
mod ring;
mod stateful;
#[cfg(test)]
mod tests;

#[doc(hidden)]
pub use self::bucket::{BucketWriter, Leader, PassGuard};
pub use self::{
    candidate::{Candidate, Electors, lease_client},
    config::{ConfigError, LeaderElectionConfig},
    error::Error,
    identity::Identity,
    leadership::{Change, Leadership},
    members::Member,
    permissions::permissions,
    ring::Ring,
    stateful::StatefulReplica,
};
