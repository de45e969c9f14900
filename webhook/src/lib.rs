//! Admission: what the API server asks before it stores objects of your Kinds.
//!
//! A Kind says its rules by [`Validatable`](reknit_apis::Validatable) and its defaults by its own `set_defaults` (or, where
//! they depend on the request, by [`Defaultable`](reknit_apis::Defaultable) on top); a [`Webhook`] puts the Kinds
//! together and answers. Its page has a whole example, and how it is tested without a server.
//!
//! # Defaulting
//!
//! The patch changes what the defaults changed, and nothing that the Kind does not know. Objects also get the annotations
//! `<group>/creator` and `<group>/lastModifier`, the second when their spec changes. What cannot be decoded is refused:
//! `mutation failed: …`.
//!
//! # Validation
//!
//! `decoding request failed: …`, `validation failed: …` with the field errors, `validation callback failed: …`. Field
//! errors of warning level are returned as warnings, which kubectl prints. An object that is stored and cannot be decoded
//! can be deleted, and be replaced by a better one.
//!
//! # Strictness
//!
//! A field that the Kind does not know is refused with its path, `unknown field "spec.serviceNmae"`, also below a flattened
//! part or in an untagged enum; fields that the stored object has already are let through. The API server prunes
//! unknown fields before it asks, unless the schema of the Kind preserves them. A name that only `#[serde(alias)]` knows
//! is unknown.
//!
//! # Dry runs
//!
//! Nothing here has an effect beyond the answer; [callbacks](Webhook::callback) are not called in a dry run.

mod asked;
mod decode;
mod defaulting;
mod graft;
mod identity;
mod limits;
mod metrics;
mod pace;
mod proposal;
mod raw;
mod routes;
mod server;
mod validation;
mod webhook;

pub use identity::{BadCertificate, Identity};
pub use limits::Limits;
pub use proposal::{Admitted, Proposal, Refused};
pub use server::ServeError;
pub use webhook::Webhook;
