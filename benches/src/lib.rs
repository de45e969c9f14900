//! Shared parts of the measurements: objects, a controller, an API server in the same process, and scenarios.

pub mod by_name;
mod controller;
pub mod events;
mod objects;
pub mod resident;
pub mod scenarios;
mod server;

pub use controller::controller;
pub use objects::{addressable_service, ready_status, service};
pub use server::Server;
