//! Admission and conversion webhooks for Kubernetes Kinds, and the certificate that they serve.
//!
//! A Kind declares its rules by [`Validatable`](reknit_apis::Validatable) and its defaults by
//! [`kind!`](reknit_apis::kind). [`Defaultable`](reknit_apis::Defaultable) declares defaults that depend on the
//! request. A [`Webhook`] collects the Kinds and answers the API server. The documentation of [`Webhook`] has a
//! complete example, with a test that needs no server.
//!
//! # Defaulting
//!
//! The patch contains the changes that the defaults make, and keeps fields that the Kind does not know. Unless
//! [`user_annotations`](Webhook::user_annotations) disables them, it also sets the annotations `<group>/creator` on
//! creation and `<group>/lastModifier` when the user changes the spec. Values of `#[serde(default)]` are not in the
//! patch; see [`defaulting`](Webhook::defaulting). An object that cannot be decoded is refused: `mutation failed: …`.
//!
//! # Validation
//!
//! A refusal reads `decoding request failed: …`, or `validation failed: …` with the field errors. Field errors of warning level are returned as warnings, which kubectl prints.
//!
//! Faults of fields have the status of the API server's own validation: 422 `Invalid`, with a cause for each field in
//! `details.causes`. kubectl prints the causes instead of the message:
//!
//! ```text
//! The Lamp "hall" is invalid:
//! * spec.watts: Invalid value: expected 1 <= 1000 <= 999
//! * spec.room: Required value
//! ```
//!
//! Faults that defaulting or validation finds while it decodes the object have causes too. Every other refusal is a 400
//! `BadRequest` as in Knative.
//!
//! The API server asks about deletions only for Kinds with a rule about them:
//! [`DELETION_RULE`](reknit_apis::Validatable::DELETION_RULE), or a [`DeletionValidator`].
//!
//! Rules that read other objects are [validators](Validator). If what they read is not cached yet, the status is 503; if
//! they fail, 500; if they take longer than [`Limits::validator_timeout`], 504.
//!
//! Some requests are allowed so that no object gets stuck. A stored object that cannot be decoded can be deleted and
//! replaced. The finalizers of a terminating object can be removed even if the object is invalid. An update that leaves
//! the spec alone is not refused for a fault that the stored object has too, since a rule may have become stricter: the
//! spec is everything but the metadata and the status. If only the status
//! cannot be decoded, rules and defaults get the object without the status, unless the request is for the status: the
//! API server discards the status of other requests. Validators get the object without an undecodable status even if the
//! status is not a subresource of the Kind.
//!
//! # Strictness
//!
//! An unknown field is refused with its path, such as `unknown field "spec.serviceNmae"`. Unknown fields beside a
//! flattened part and in an untagged enum are refused, too. The message names the first twenty unknown fields. An
//! unknown field that the stored object already has is allowed, even if it moves to another item of a list. The API
//! server prunes unknown fields before it calls the webhook, unless the schema of the Kind preserves them. A field name
//! that exists only as a `#[serde(alias)]` is unknown.
//!
//! # Dry runs
//!
//! Defaulting and validation have no effect beyond the response, and answer dry runs as they answer other requests.
//!
//! # Mutators
//!
//! [`mutator`](Webhook::mutator) adds a mutating step for objects of any Kind, such as the injection of bindings into
//! pod templates by `reknit_knative`. A [`Mutator`] has a path and a webhook configuration of its own.
//!
//! # ConfigMaps
//!
//! [`config`](Webhook::config) lets defaults and rules read a ConfigMap of the system namespace, by
//! [`Request::config`](reknit_apis::Request::config).
//!
//! [`config_validation`](Webhook::config_validation) refuses ConfigMaps of the system namespace that the process cannot
//! parse, with the message of the parser, and changes of the key `_example`, which only documents the other keys.
//!
//! # Versions
//!
//! [`conversion`](Webhook::conversion) converts objects between versions by way of the hub
//! ([`Convertible`](reknit_apis::Convertible)), and sets the defaults of the resulting version. Of the metadata only
//! labels and annotations change. [`migrate_storage`] stores all objects in the current storage version.
//!
//! # Configurations
//!
//! The API server calls a webhook by configurations. They must exist, each with an entry of its own name; otherwise the
//! controller of the certificate logs an error. The controller sets the rules of these entries, the CA bundle, a
//! `namespaceSelector` that excludes namespaces with the label `webhooks.knative.dev/exclude`, and the path of the
//! Service, or of the URL if that has none. In CustomResourceDefinitions, it sets the CA bundle and the path in
//! `spec.conversion`.
//!
//! | object | entry |
//! | --- | --- |
//! | MutatingWebhookConfiguration | `defaulting.webhook.<domain>` |
//! | MutatingWebhookConfiguration | the path of each [mutator](Webhook::mutator) and `.webhook.<domain>` |
//! | ValidatingWebhookConfiguration | `validation.webhook.<domain>` |
//! | ValidatingWebhookConfiguration | `config.webhook.<domain>` |
//!
//! The API server calls `config.webhook.<domain>` for all ConfigMaps that the selectors of the entry match, and refuses
//! changes of these ConfigMaps while the webhook is down. The selectors should match the checked ConfigMaps by a label.
//! They must not match `kube-root-ca.crt`: in a new namespace, the pod of the webhook cannot start until that ConfigMap
//! exists.
//!
//! # Server
//!
//! The server speaks TLS 1.3 and HTTP/1.1. The answers are Knative's:
//!
//! | request | answer |
//! | --- | --- |
//! | user agent `kube-probe/…`, any path | 200; 503 `shutting down` while the process stops; 503 while code is stuck |
//! | another content type than `application/json` | 415 |
//! | a path for which the webhook has no Kind or ConfigMap | 400 `no controller registered for: …`, and a warning in the log |
//! | a body that is not a review | 400 `could not decode body: …` |
//! | a body of more than 7 MiB, or of more than 32 MiB for a conversion, which may hold a list (see [`Limits`]) | 413 |
//! | a body that does not arrive in time | 408 |
//! | a review that takes too long | 504 |
//! | a panic in the code of a Kind | 500, counted in `controller_runtime_webhook_panics_total` |
//!
//! The paths are `/defaulting`, `/resource-validation`, `/config-validation`, `/resource-conversion` and those of the
//! mutators.
//!
//! The other metrics have the names of controller-runtime too; [docs/operations.md] lists them.
//!
//! [docs/operations.md]: https://github.com/reknit/reknit/blob/main/docs/operations.md#metrics
//!
//! # Certificates
//!
//! A process (`reknit_sharedmain::Main::webhook`) keeps its certificate in the Secret `webhook-certs`. It is an ECDSA P-256
//! certificate, valid for seven days and renewed a day before its end. It covers the names of the Service and the hosts
//! of the URLs by which configurations call the webhook. The leader of the controller writes the Secret, and every replica of
//! the server serves its certificate, also in another process, whose account writes nothing.
//!
//! Each rotation creates an authority, and no handshake fails during a rotation. An authority is in the bundle
//! `ca-cert.pem` for one rotation before it issues the served certificate, and for one rotation after. A new
//! certificate is issued only once all configurations trust its authority, or at once if no client accepts the old one
//! any more, because it has expired or the Secret was edited. If the Secret is lost, everything is created again, and
//! handshakes fail until the API server trusts the new authority.
//!
//! An object that names another Service than that of this webhook is left to the webhook behind it. Two programs in one
//! namespace with the same Secret share its certificate, which has the names of both.
//!
//! | key of the Secret | content |
//! | --- | --- |
//! | `server-cert.pem`, `server-key.pem` | the served certificate |
//! | `ca-cert.pem` | the trusted authorities: previous, current and next |
//! | `next-ca-cert.pem`, `next-ca-key.pem` | the authority of the next certificate |

mod admission;
mod assemble;
mod certificates;
mod conversion;
mod decoded_size;
mod endpoints;
mod health;
#[doc(hidden)]
pub mod internal;
mod limits;
mod server;
mod webhook;

pub use admission::mutator::Mutator;
pub use admission::test_request::{Admitted, Denied, TestRequest};
pub use admission::{deletion_validators::DeletionValidator, validators::Validator};
pub use conversion::storage_migration::migrate_storage;
pub use limits::Limits;
pub use webhook::Webhook;
