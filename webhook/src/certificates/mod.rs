//! The certificate of a webhook: issue, rotation, and the objects by which the API server trusts it.

mod authority;
pub(crate) mod configuration;
mod controller;
pub(crate) mod identity;
mod secret;
pub(crate) mod service;

pub(crate) use controller::CertificateReconciler;
pub(crate) use secret::Lifetime;
