//! Which replica works on which keys: buckets of keys, one Lease for each, and who holds it.

mod key;
mod leadership;

pub use key::Key;
pub use leadership::{Change, Leadership};
