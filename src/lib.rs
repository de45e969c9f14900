//! A framework for Kubernetes controllers with the programming model of Knative's Go libraries.
//!
//! You declare what your controller reads, and fill in a status. The framework watches, caches and queues, elects leaders,
//! adds and removes finalizers, writes the status and records events.
//!
//! # A Kind, a reconciler, a program
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use k8s_openapi::api::core::v1::Service;
//! use kube::CustomResource;
//! use reknit::prelude::*;
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! /// Names a Service that should exist.
//! #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
//! #[kube(group = "demo.reknit.dev", version = "v1", kind = "Wish", namespaced, status = "WishStatus")]
//! pub struct WishSpec {
//!     service: String,
//! }
//!
//! #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
//! pub struct WishStatus {
//!     #[serde(flatten)]
//!     duck: DuckStatus, // observedGeneration and conditions
//! }
//!
//! kind!(Wish { status: WishStatus, conditions: knative(duck) });
//!
//! struct Reconciler {
//!     services: Tracked<Service>,
//! }
//!
//! impl ReconcileKind for Reconciler {
//!     type Kind = Wish;
//!
//!     async fn reconcile_kind(&self, wish: &Wish, status: &mut WishStatus) -> Result<Outcome> {
//!         let mut conditions = Wish::CONDITIONS.manage(status);
//!         match self.services.get(wish, &wish.spec.service) {
//!             Some(_) => conditions.mark_true("Ready"),
//!             None => conditions.mark_false("Ready", "Missing", format!("Service {:?} wasn't found.", wish.spec.service)),
//!         }
//!         Ok(Outcome::done())
//!     }
//! }
//!
//! fn controller(cx: &Context) -> Result<Controller> {
//!     let mut build = Controller::of::<Wish>(cx);
//!     let services = build.track();
//!     Ok(build.reconciler(Reconciler { services }).build())
//! }
//!
//! fn main() -> ExitCode {
//!     sharedmain::main("wishes", &[controller])
//! }
//! ```
//!
//! # Concepts
//!
//! **A reconcile** gets the object to read and a status to fill in. The status is written afterwards if it differs, and it
//! is the only part of the object that a reconcile changes. A reconcile ends in an [`Outcome`](prelude::Outcome) (done,
//! again after a while, or skip, with an event if you like), or in an [`Error`](prelude::Error). Any error converts into
//! it by `?`. It is retried with backoff unless it is [`permanent`](prelude::Permanent).
//!
//! **Reads** come from memory. A [`Tracked`](prelude::Tracked) lister is Knative's tracker and lister in one: it records
//! which object read what, and enqueues that object when it changes, even if it did not exist yet.
//! [`Owned`](prelude::Owned) lists the objects that an object controls, [applies](prelude::Owned::apply) a child by name,
//! [creates](prelude::Owned::create) and deletes children without a fixed name, and [claims](prelude::Owned::claim)
//! orphans as a ReplicaSet does. An [`Informer`](prelude::Informer) enqueues nothing by itself;
//! `build.watch(&informer).keys(..)` maps its changes to keys. A write through `build.client()` is in all of these when the
//! call returns.
//!
//! **The constructor** is Knative's `NewController`, or `SetupWithManager`. It is the only place where a
//! [`Context`](prelude::Context) exists, so everything that a reconcile reads is a field of the reconciler. A type that
//! implements [`Inject`](prelude::Inject) is created at the first request, once in a process. Reconciles begin when the
//! informers that the constructor requested are synced.
//!
//! **Roles** beside reconciling are traits, enabled on the builder: [`FinalizeKind`](prelude::FinalizeKind) by
//! `.finalizing()`, [`ObserveKind`](prelude::ObserveKind) by `.observing()` for replicas that do not lead, and
//! [`ObserveDeletion`](reconciler::ObserveDeletion) by `.observing_deletion()`. A controller without a Kind of its own
//! implements [`ReconcileKey`](reconciler::ReconcileKey).
//!
//! **A Kind** is declared by [`kind!`](prelude::kind): with Knative's conditions, which the framework initializes, or
//! without. Kubernetes' own Kinds are declared already.
//!
//! **Blocking code** belongs in `tokio::task::spawn_blocking`. A long wait belongs outside the reconcile: start it, return,
//! and enqueue the key through `build.queue()` when it ends. State that is kept for a key, such as the task that waits, goes
//! into `build.per_key()`, which drops it with the object.
//!
//! **The process** is [`sharedmain`]. Its documentation lists flags, environment variables, ConfigMaps, probes and metrics.
//!
//! # Where is …
//!
//! | in Knative, controller-runtime or kube-runtime | here |
//! | --- | --- |
//! | `injection.Context`, `Manager`, the `Context` of kube-runtime | [`Context`](prelude::Context) in the constructor, fields of the reconciler afterwards |
//! | generated informers and listers, the manager's cache, `reflector::Store` | [`Informer`](prelude::Informer), [`Tracked`](prelude::Tracked), [`Owned`](prelude::Owned) |
//! | `ReconcileKind`, `Reconcile`, the reconcile function | [`ReconcileKind`](prelude::ReconcileKind) |
//! | `reconcile.Result`, `Action` | [`Outcome`](prelude::Outcome) |
//! | `controller.NewPermanentError`, `reconcile.TerminalError` | [`Permanent`](prelude::Permanent) |
//! | `Status().Update`, `patch_status` | nothing to call: fill in the status |
//! | `conditionSet.Manage(status).MarkTrue(..)` | `MyKind::CONDITIONS.manage(status).mark_true(..)` |
//! | `sharedmain.MainWithContext`, `mgr.Start` | [`sharedmain::main`], [`Main`](prelude::Main) |
//!
//! # How do I …
//!
//! | | call | elsewhere |
//! | --- | --- | --- |
//! | enqueue an object when one that it names changes | `build.track()`, and `get` in the reconcile | Knative's tracker; `Watches` with a map function |
//! | enqueue it when one that it controls changes | `build.owns()` | `Owns`; `Controller::owns` |
//! | follow a reference of any Kind | `build.track_any()` | Knative's `URIResolver` |
//! | enqueue it for any other reason | `build.watch(&informer).keys(..)`, with [`keys`](prelude::keys) for labels and namespaces | `EnqueueRequestsFromMapFunc`; `Controller::watches` |
//! | filter those events | `build.watch(&informer).filter(..)`, with [`label`](prelude::label), [`annotation`](prelude::annotation) and others of [`injection`] | predicates; `FilteringResourceEventHandler` |
//! | serve some objects of the Kind only | [`Controller::selected`](prelude::Controller::selected) by label, field or namespace; `.class(annotation, value)`, `.filter(..)` | `cache.Options.ByObject`; class filters |
//! | reconcile again after a while | [`Outcome::after`](prelude::Outcome::after) | `RequeueAfter`; `Action::requeue` |
//! | reconcile when something outside happens | `build.queue()`, [`Queue::add`](prelude::Queue::add) and [`add_after`](prelude::Queue::add_after) | `source.Channel`; `reconcile_on` |
//! | clean up before an object goes | [`FinalizeKind`](prelude::FinalizeKind) and `.finalizing()` | `FinalizeKind`; `controllerutil.AddFinalizer`; `finalizer` |
//! | find objects by a computed value | [`Informer::index`](prelude::Informer::index) | field indexes; indexers |
//! | wait for a state of an object | [`Informer::until`](prelude::Informer::until) | `await_condition` |
//! | read what the cache may not have yet | [`Informer::newest`](prelude::Informer::newest), or `build.client()` | `APIReader` |
//! | reconcile cluster-scoped objects | as any other; [`Tracked::get_in`](prelude::Tracked::get_in) names the namespace of what they read | |
//! | record events outside a reconcile | `build.recorder()` | `EventRecorder` |
//! | keep state for each object | `build.per_key()` | a map that nothing empties |
//! | add a metric | `cx.metrics()`, a registry of prometheus 0.14 | `metrics.Registry` |
//! | add a flag | [`Main::flags`](prelude::Main::flags), with clap 4 | `flag` |
//! | read configuration that may change | `build.config::<T>()`, with [`FromConfigMap`](prelude::FromConfigMap) | `configmap.Store` |
//! | set defaults, validate | [`kind!`](prelude::kind) with `defaults`, [`Validatable`](prelude::Validatable), [`Webhook`](prelude::Webhook) | `SetDefaults`, `Validate`; `CustomDefaulter`, `CustomValidator` |
//! | serve two versions of a Kind | [`Convertible`](apis::Convertible), `Webhook::conversion`, and one definition of both by `kube::core::crd::merge_crds` | hub and spokes |
//! | run a server beside the controllers | [`Task`](sharedmain::Task) | `Runnable` |
//! | limit requests | `--kube-api-qps`, `--kube-api-burst`; there is no limit by default | the same flags |
//!
//! # Webhooks
//!
//! [`webhook`] sets defaults and refuses invalid objects before the API server stores them. A Kind declares its defaults by
//! [`kind!`](prelude::kind) and its rules by [`Validatable`](prelude::Validatable), a [`Webhook`](prelude::Webhook) answers,
//! and [`Main::webhook`](prelude::Main::webhook) serves it, with certificates that are made, trusted and renewed
//! automatically. [`Convertible`](apis::Convertible) converts between versions. A test needs no server:
//! [`Webhook`](prelude::Webhook) has one in five lines.
//!
//! # Testing
//!
//! [`testing`] has two kinds of tests. A table test runs one reconcile of the program's own constructor on given objects
//! and compares what it wrote. A [`ControlPlane`](testing::ControlPlane) is a real API server on 127.0.0.1.
//!
//! ```
//! # use k8s_openapi::api::core::v1::Namespace;
//! # use reknit::prelude::*;
//! # struct Greeter;
//! # impl ReconcileKind for Greeter {
//! #     type Kind = Namespace;
//! #     async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
//! #         Ok(Outcome::done().event(Event::normal("Greeted", "hello")))
//! #     }
//! # }
//! # fn controller(cx: &Context) -> Result<Controller> {
//! #     Ok(Controller::of::<Namespace>(cx).reconciler(Greeter).build())
//! # }
//! use reknit::testing::given;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut namespace = Namespace::default();
//! namespace.metadata.name = Some("quiet".into());
//! let passed = given(namespace).pass(controller, "quiet").await;
//! assert!(passed.writes().is_empty());
//! assert_eq!(passed.events()[0].reason, "Greeted");
//! # }
//! ```
//!
//! # Versions
//!
//! kube 4 and k8s-openapi 0.28 belong together, and kube-leader-election accepts a later k8s-openapi. If
//! `cargo tree -i k8s-openapi` finds two, run `cargo update k8s-openapi@0.29.0 --precise 0.28.0`. TLS is rustls with
//! ring. A Kind of your own needs kube, schemars, serde and serde_json beside reknit. A program chooses the version of
//! Kubernetes by a feature of k8s-openapi (`latest`, `v1_33`); reknit chooses none.

pub use reknit_apis as apis;
pub use reknit_injection as injection;
pub use reknit_reconciler as reconciler;
pub use reknit_sharedmain as sharedmain;
pub use reknit_testing as testing;
pub use reknit_webhook as webhook;

/// The names that most controllers use.
pub mod prelude {
    pub use reknit_apis::{
        Addressable, ConditionSet, DuckStatus, FieldError, KRShaped, KReference, Key, Kind, Request, Url,
        Validatable, kind,
    };
    pub use reknit_injection::{
        Change, Config, Context, FromConfigMap, Informer, Inject, Selection, annotation, label, select,
    };
    pub use reknit_reconciler::{
        Controller, Error, Event, FinalizeKind, NotApplied, ObserveKind, Outcome, Owned, Permanent, Queue,
        ReconcileKind, Result, Tracked, TrackedAny, keys,
    };
    pub use reknit_sharedmain::{self as sharedmain, Main};
    pub use reknit_webhook::Webhook;
}

/// The README's controller compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
