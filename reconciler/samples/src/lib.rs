//! The sample controllers, one file a Kind.

pub mod addressable_service;
mod cluster_domain;

pub use cluster_domain::ClusterDomain;
