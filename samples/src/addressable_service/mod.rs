//! The AddressableService Kind, which publishes the address of a Service in its status, and its controller.

mod controller;
mod kind;

pub use controller::controller;
pub use kind::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
