//! Which replica works on which keys: buckets of keys, one Lease for each, and who holds it.

mod config;
mod key;
mod leadership;
mod ring;

pub use config::{ConfigError, LeaderElectionConfig};
pub use key::Key;
pub use leadership::{Change, Leadership};
pub use ring::Ring;
