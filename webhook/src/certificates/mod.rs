//! The certificate of a webhook: how it is issued and rotated, and the objects that make the API server trust it.

mod authority;
pub(crate) mod controller;
pub(crate) mod identity;
mod metrics;
pub(crate) mod registration;
pub(crate) mod secret;
pub(crate) mod service;
