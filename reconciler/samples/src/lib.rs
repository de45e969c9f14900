//! The sample controllers, one file a Kind, and what their binary adds to the framework's flags.

pub mod addressable_service;
mod cluster_domain;
mod flags;

pub use cluster_domain::ClusterDomain;
pub use flags::Flags;
