//! Leader election: each replica leads buckets of keys, one Lease for each bucket.

mod bucket_reporter;
mod bucket_state;
mod candidate;
mod config;
mod elector;
mod error;
#[cfg(test)]
mod fake;
mod guard;
mod identity;
mod leadership;
mod lease_error;
mod observed_lease;
mod permissions;
mod ring;
mod stateful;

pub(crate) use self::bucket_state::Leader;
pub use self::{
    candidate::{Candidate, Electors, lease_client},
    config::{ConfigError, LeaderElectionConfig},
    error::Error,
    identity::Identity,
    leadership::{Change, Leadership},
    permissions::permissions,
    ring::Ring,
    stateful::StatefulReplica,
};
