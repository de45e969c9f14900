//! Webhooks: what the API server asks before it stores objects of your Kinds, and to read them in another version.
//!
//! A Kind says its rules by [`Validatable`](reknit_apis::Validatable) and its defaults by `kind!` (or, where
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
//! can be deleted, and be replaced by a better one; one that is being deleted can lose its finalizers whatever is wrong with
//! it. Where the status alone cannot be decoded, rules, defaults and callbacks get the object without it: of a request that is
//! not about the status, the API server does not take it. (Callbacks do also where the status of their Kind is no subresource.)
//!
//! # Strictness
//!
//! A field that the Kind does not know is refused with its path, `unknown field "spec.serviceNmae"`, also below a flattened
//! part or in an untagged enum; of very many the first twenty are named. Fields that the stored object has already are let
//! through, in whatever item of a list. The API server prunes unknown fields before it asks, unless the schema of the Kind
//! preserves them. A name that only `#[serde(alias)]` knows is unknown.
//!
//! # Dry runs
//!
//! Nothing here has an effect beyond the answer; [callbacks](Webhook::callback) are not called in a dry run.
//!
//! # ConfigMaps
//!
//! [`config_validation`](Webhook::config_validation) refuses what the process could not read, with the parser's own words,
//! and an edit of `_example`, which is documentation. Only in the system namespace.
//!
//! # Versions
//!
//! [`conversion`](Webhook::conversion) takes objects from one version to another by way of the hub
//! ([`Convertible`](reknit_apis::Convertible)), and gives them the defaults of the version that they end in. Of the metadata
//! only labels and annotations change. [`migrate_storage`] has all objects stored in the version that is the one to store.
//!
//! # Certificates
//!
//! A process ([`Webhook::assemble`]) keeps its certificate in the Secret `webhook-certs`: ECDSA P-256, for seven days,
//! renewed a day before its end, for the names of the Service and for the hosts of the URLs by which configurations call the
//! webhook. The leader writes; every replica shows what is in the Secret, from the moment it changes.
//!
//! Each rotation brings a new authority, and no handshake fails meanwhile: an authority is among those that are to be
//! trusted (`ca-cert.pem`) one rotation before it issues what is shown, and one rotation after. A new certificate waits until
//! all configurations trust its authority, unless nobody takes the old one any more: its time is over, or somebody wrote
//! something else into the Secret. If the Secret itself is lost, everything is made anew, and handshakes fail until the API
//! server knows.
//!
//! | key of the Secret | what it is |
//! | --- | --- |
//! | `server-cert.pem`, `server-key.pem` | what is shown |
//! | `ca-cert.pem` | the authorities that are trusted: what was, is and will be |
//! | `next-ca-cert.pem`, `next-ca-key.pem` | the authority of the next certificate |

mod admission;
mod certificates;
mod conversion;
mod process;
mod server;
mod webhook;

pub use admission::test_request::{Admitted, Proposal, Refused};
pub use certificates::identity::{BadCertificate, Identity};
pub use certificates::service::Place;
pub use conversion::storage_migration::{MigrationError, migrate_storage};
pub use server::ServeError;
pub use server::health::Health;
pub use server::limits::Limits;
pub use webhook::Webhook;
