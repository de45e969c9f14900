//! The certificate of a webhook: issue, rotation, and the objects by which the API server trusts it.

mod authority;
pub(crate) mod configuration;
pub(crate) mod controller;
pub(crate) mod identity;
pub(crate) mod secret;
pub(crate) mod service;
