//! The Kinds of the sample controllers, one file each.

mod addressable_service;
mod simple_deployment;

pub use addressable_service::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
pub use simple_deployment::{POD_OWNER, SimpleDeployment, SimpleDeploymentSpec, SimpleDeploymentStatus};
