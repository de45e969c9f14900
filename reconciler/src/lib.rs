//! Controllers: reconcilers, and the work queues that run them.
//!
//! A constructor declares the objects that a controller reads, and sets its reconciler:
//!
//! ```
//! use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
//! use reknit_injection::Context;
//! use reknit_reconciler::{Controller, Event, Outcome, ReconcileKind, Result, Tracked};
//!
//! /// Records an event for each Deployment without a ConfigMap of the same name.
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
//! # The queue
//!
//! A key is enqueued by a change of its own object, of an object that a pass [read](Builder::track) by name, labels or
//! [reference](Builder::track_any), of an object that it [controls](Builder::owns), of an object that a
//! [watch](Builder::watch) maps to it, or of the [configuration](Builder::config). Other code enqueues keys through the
//! [queue](Builder::queue). At each resync, by default every ten hours, every key is enqueued.
//!
//! # A pass
//!
//! One run of the reconciler for one key is called a pass. The object comes from the cache. If the reconciler
//! [finalizes](RoleBuilder::finalizing), the finalizer is added first. Defaults are set in memory and conditions
//! initialised, and then the reconciler runs. A changed status is written, provided that the object still has
//! the version that the pass read; otherwise the object is read again, and what is left of the change is written. An
//! [`Event`] of the pass is published in the background. The framework's status and finalizer writes do not enqueue the key of
//! the pass that makes them, except a status that is written after a conflict, and a finalizer that is applied.
//!
//! # After a pass
//!
//! | result of the pass | the key |
//! | --- | --- |
//! | [`Outcome::done`], [`Outcome::skip`] | waits for the next change |
//! | [`Outcome::after`] | is enqueued after this time |
//! | a conflict (409) | is retried with backoff, without an error in the log |
//! | an error that [is waiting](Error::is_waiting) | waits for the first list of a Kind; nothing is written |
//! | an [`Error`], a panic, a missed [deadline](Builder::deadline) | is retried with backoff, with a log line and an event |
//! | a [permanent](Error::permanent) error | waits for the next change, with a log line and an event |
//!
//! The backoff of a key starts at 5 ms and doubles with each failed retry up to 1000 s, or up to a minute if a request to the
//! API server has failed. All keys of a controller together are retried ten times a second, with a burst of a hundred, and
//! namespaces take turns. An error can ask for an [earlier retry](Error::retry_within).
//!
//! # Causes
//!
//! A queued key keeps up to sixteen causes: the objects that changed and how they are related to the object of the key, the
//! number of a retry and the error before it, a resync, a reason given to [`Queue::add_because`] and others. They are the
//! field `causes` of the span and the log lines of the pass, and `reknit_reconcile_causes_total` counts them. A
//! reconciler cannot read them: it acts on the state that it finds, so that it also works after a change that nobody
//! reported.
//!
//! # RBAC
//!
//! The Role of a controller has to allow these requests. The builder calls declare them, and
//! `reknit_sharedmain::Main::rbac` prints the rules. Declare the requests that the builder cannot know with
//! [`Builder::allows`], [`OwnedOptions::verbs`] and [`Kinds`].
//!
//! | | on | verbs |
//! | --- | --- | --- |
//! | any controller of a Kind | the Kind | list, watch; get if it has a status |
//! | | its status | patch |
//! | | `events` of `events.k8s.io` | create, patch |
//! | [`finalizing`](RoleBuilder::finalizing), [`former_finalizers`](Builder::former_finalizers) | the Kind | get, patch |
//! | [`observing_deletion_as_leader`](RoleBuilder::observing_deletion_as_leader), with labels or fields | the Kind | get |
//! | [`track`](Builder::track), [`watch`](Builder::watch), [`owns`](Builder::owns) | the objects that are read | list, watch |
//! | [`track_any`](Builder::track_any), [`owns_any`](Builder::owns_any) | each Kind that references or templates name | list, watch |
//! | [`Owned::apply`] | the children | get, create, patch |
//! | [`Owned::get`], [`get_in`](Owned::get_in) | the children | get |
//! | [`Owned::apply_or_replace`] | the children | get, create, patch, delete |
//! | [`claim`](Owned::claim) | the children | patch |
//! | | the owner | get |
//! | [`Owned::create`], [`delete`](Owned::delete) | the children | create, delete |
//! | [`Owned::create_or_update`] | the children | get, create, update |
//! | the [`Owned`] calls above, if the admission plugin OwnerReferencesPermissionEnforcement is enabled, as in OpenShift | the Kind's `finalizers` | update |
//! | [`config`](Builder::config) | the ConfigMap, in the system namespace | list, watch |
//! | leader election | `leases` of `coordination.k8s.io`, in the system namespace | get, list, watch, create, patch, delete |
//! | | `pods`, in the system namespace | get |
//!
//! # Metrics
//!
//! Queues have the metrics `workqueue_*` of client-go, and passes `reknit_*`. `reknit_sharedmain`, which serves them,
//! documents all metrics.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod capacity;
mod controller;
mod driver;
mod error;
mod events;
mod finalizer;
mod inspect;
#[doc(hidden)]
pub mod internal;
pub mod keys;
mod kind_client;
mod kinds;
mod limits;
mod lost_finalizers;
mod managers;
mod merge;
mod metrics;
mod object_client;
mod outcome;
mod owned;
mod pass_log;
mod per_key;
mod queue;
mod readable;
mod roles;
mod stack;
mod status;
mod tracker;
mod turns;
mod waits;

pub use controller::{Builder, Controller, Keys, RoleBuilder, Watch};
#[doc(hidden)]
pub use controller::{Drained, Health, Run, RunningPass};
pub use error::{Error, Result, ResultExt};
pub use events::{Event, EventType, Recorder};
#[doc(hidden)]
pub use inspect::{ObjectState, Related};
pub use kinds::Kinds;
pub use outcome::Outcome;
pub use owned::{Applied, NotApplied, Owned, OwnedAny, OwnedOptions, apply_body, controller_reference};
pub use per_key::PerKey;
pub use queue::Queue;
pub use reknit_apis::{KReference, Key, Reference};
pub use roles::{FinalizeKind, ObserveDeletion, ObserveKind, ReconcileKey, ReconcileKind, ReleaseKind};
pub use status::merge_patch;
pub use tracker::{Duck, Tracked, TrackedAny};

/// The type of a function that constructs a controller. `main` gets a list of such functions.
pub type ControllerConstructor = fn(&reknit_injection::Context) -> Result<Controller>;
