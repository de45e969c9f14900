//! The sample controllers, one file for each Kind.

pub mod addressable_service;
mod cluster_domain;
mod pods;
pub mod program;
pub mod simple_deployment;
mod webhook;

pub use cluster_domain::ClusterDomain;
pub use webhook::webhook;
