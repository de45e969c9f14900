//! The sample controllers, one file a Kind, and what their binary adds to the framework's flags.

mod cluster_domain;
mod flags;

pub use cluster_domain::ClusterDomain;
pub use flags::Flags;
