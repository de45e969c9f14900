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
//! The object comes from the cache. Where the reconciler [finalizes](WithReconciler::finalizing), the finalizer is put
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
//! | an [`Error`], a panic, a missed [deadline](WithReconciler::deadline) | is retried with backoff, with log and event |
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
//! | [`finalizing`](WithReconciler::finalizing) | the Kind | patch |
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

mod backoff;
mod builder;
mod child;
mod controller;
mod driver;
mod endpoint;
mod error;
mod event;
mod every;
mod finalizer;
pub mod keys;
pub mod leader;
mod limits;
mod metrics;
mod outcome;
mod per_key;
mod queue;
mod recorder;
mod roles;
mod span;
mod status;
mod tracker;
mod uuid;
mod watch;

pub use builder::{Builder, Keys, WithReconciler};
pub use child::{NotApplied, applied};
pub use controller::{Controller, Drained, Health, Run, Working};
pub use error::{Error, Permanent, Result};
pub use event::Event;
pub use outcome::Outcome;
pub use per_key::PerKey;
pub use queue::Queue;
pub use recorder::Recorder;
pub use reknit_apis::{KReference, Key, Reference};
pub use roles::{FinalizeKind, ObserveDeletion, ObserveKind, ReconcileKey, ReconcileKind};
pub use tracker::{Owned, Tracked, TrackedAny};
pub use watch::Watch;

/// Makes a controller: what `main` is given a list of.
pub type ControllerConstructor = fn(&reknit_injection::Context) -> Result<Controller>;
