//! The controller of the built-in Kind WarmGreeting.

mod controller;

pub use controller::controller;
pub use k8s_openapi::api::hello::v9alpha1::WarmGreeting;
