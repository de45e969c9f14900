//! The sample: two Kinds with their controllers, and the program that runs them.

pub mod addressable_service;
mod cluster_domain;
pub mod manifests;
mod program;
pub mod simple_deployment;
mod webhook;

pub use addressable_service::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
pub use cluster_domain::ClusterDomain;
pub use program::program;
pub use simple_deployment::{POD_OWNER, SimpleDeployment, SimpleDeploymentSpec, SimpleDeploymentStatus};
pub use webhook::webhook;
