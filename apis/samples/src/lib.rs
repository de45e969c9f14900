//! The Kinds of the sample controller, one file each.

mod addressable_service;

pub use addressable_service::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
