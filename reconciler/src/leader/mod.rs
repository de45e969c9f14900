//! Which replica works on which keys: buckets of keys, one Lease for each, and who holds it.

mod candidate;
mod config;
mod elector;
mod error;
#[cfg(test)]
mod fake;
mod guard;
mod identity;
mod leadership;
mod post;
mod ring;
mod sighting;
mod stateful;
mod trouble;

pub use candidate::{Candidate, Electors, lease_client};
pub use config::{ConfigError, LeaderElectionConfig};
pub use error::Error;
pub use identity::Identity;
pub(crate) use leadership::Lead;
pub use leadership::{Change, Leadership};
pub use ring::Ring;
pub use stateful::StatefulReplica;
