//! What turns a key into a status: a controller is a reconciler, and what wakes it.
//!
//! A constructor says what a controller reads, what it is woken by and what it does:
//!
//! ```
//! use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
//! use reknit_injection::Context;
//! use reknit_reconciler::{Controller, Event, Outcome, ReconcileKind, Result, Tracked};
//!
//! /// Says which Deployments lack the ConfigMap of their name.
//! struct Checker {
//!     maps: Tracked<ConfigMap>,
//! }
//!
//! impl ReconcileKind for Checker {
//!     type Kind = Deployment;
//!
//!     async fn reconcile_kind(&self, deployment: &Deployment, _status: &mut ()) -> Result<Outcome> {
//!         let name = deployment.metadata.name.as_deref().unwrap_or_default();
//!         match self.maps.get(deployment, name) {
//!             Some(_) => Ok(Outcome::done()),
//!             None => Ok(Outcome::done().event(Event::warning("NoConfigMap", "it runs on defaults"))),
//!         }
//!     }
//! }
//!
//! pub fn controller(cx: &Context) -> Result<Controller> {
//!     let mut build = Controller::of::<Deployment>(cx);
//!     let maps = build.track();
//!     Ok(build.reconciler(Checker { maps }).build())
//! }
//! ```
//!
//! # What wakes a key
//!
//! Its own object; what a pass [read](Builder::track), also by a reference of [any Kind](Builder::track_any); what
//! the object [controls](Builder::owns); whatever a [watch](Builder::watch) maps to it; a changed
//! [configuration](Builder::config); anything else, through the [queue](Builder::queue). Every ten hours each key is
//! looked at anyway.
//!
//! # What a pass does
//!
//! The object comes from the cache. Where the reconciler [finalizes](ControllerBuilder::finalizing), the finalizer is put
//! on it first. Defaults are applied in memory, conditions initialised, and then the reconciler runs. What differs in
//! the status afterwards is written, on condition that nobody else wrote meanwhile; a conflict is settled by reading
//! again. What the pass recorded as [`Event`] is published in the background. The framework's own writes do not wake
//! the key whose pass they end.
//!
//! # What becomes of the key
//!
//! | the pass ends with | the key |
//! | --- | --- |
//! | [`Outcome::done`], [`Outcome::skip`] | waits for something to happen |
//! | [`Outcome::after`] | comes again after that long |
//! | a conflict (409) | is retried with backoff; that is no error |
//! | an [`Error`], a panic, a missed [deadline](ControllerBuilder::deadline) | is retried with backoff, with log and event |
//! | a [permanent](Error::permanent) error | waits for something to happen, with log and event |
//!
//! The backoff of a key begins with 5 ms and doubles up to 1000 s; all keys of a controller together are retried ten
//! times a second, a hundred at once. An error may say that it is to be [retried sooner](Error::retry_within).
//!
//! # Rights
//!
//! What a controller asks of the API server, and so what its Role has to grant:
//!
//! | | on | verbs |
//! | --- | --- | --- |
//! | any controller of a Kind | the Kind | get, list, watch |
//! | | its status | patch |
//! | | `events` of `events.k8s.io` | create, patch |
//! | [`finalizing`](ControllerBuilder::finalizing) | the Kind | patch |
//! | [`track`](Builder::track), [`watch`](Builder::watch), [`owns`](Builder::owns) | what is read | get, list, watch |
//! | [`Owned::apply`], [`claim`](Owned::claim) | the children | create, patch |
//! | [`Owned::create`], [`delete`](Owned::delete) | the children | create, delete |
//! | all three, where OwnerReferencesPermissionEnforcement is on, as in OpenShift | the Kind's `finalizers` | update |
//! | [`config`](Builder::config) | the ConfigMap, in the system's namespace | get, list, watch |
//! | leader election | `leases` of `coordination.k8s.io`, in the system's namespace | get, create, patch |
//!
//! # Metrics
//!
//! They are `workqueue_*`, as client-go names them, and `reknit_*`: the page of `reknit_sharedmain`, which serves them, lists
//! all.

mod controller;
mod driver;
mod error;
mod events;
mod finalizer;
#[doc(hidden)]
pub mod internal;
pub mod keys;
pub mod leader;
mod limits;
mod metrics;
mod object_client;
mod outcome;
mod owned;
mod per_key;
mod queue;
mod roles;
mod status;
mod tracker;
mod uuid;

pub use controller::{Builder, Controller, ControllerBuilder, Drained, Health, Keys, Run, Watch, Working};
pub use error::{Error, Permanent, Result};
pub use events::{Event, Recorder};
pub use outcome::Outcome;
pub use owned::{NotApplied, Owned, applied};
pub use per_key::PerKey;
pub use queue::Queue;
pub use reknit_apis::{KReference, Key, Reference};
pub use roles::{FinalizeKind, ObserveDeletion, ObserveKind, ReconcileKey, ReconcileKind};
pub use tracker::{Tracked, TrackedAny};

/// Makes a controller: what `main` is given a list of.
pub type ControllerConstructor = fn(&reknit_injection::Context) -> Result<Controller>;
