//! A framework for Kubernetes controllers with the programming model of Knative's Go libraries: say what your
//! controller reads and what its status means, and the framework does the watching, caching, queueing, leader
//! election, finalizers, status and events.
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
//! /// Wants a Service to exist.
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
//! **A pass** is given the object to read and a status to fill in. The status is written afterwards if it differs, and
//! that is all that a pass changes of its own object. It ends in an [`Outcome`](prelude::Outcome) (done, again after a
//! while, skip; with an event if it likes) or in an [`Error`](prelude::Error), which takes anything through `?` and is
//! retried with backoff unless it is [`permanent`](prelude::Permanent).
//!
//! **Reading** is from memory. A [`Tracked`](prelude::Tracked) lister remembers who asked for what, and wakes it when that
//! changes, also when it was not there yet. [`Owned`](prelude::Owned) lists what an object controls,
//! [applies](prelude::Owned::apply) what has a name, [creates](prelude::Owned::create) and deletes what has only a number,
//! and [claims](prelude::Owned::claim) orphans. A plain [`Informer`](prelude::Informer) wakes nobody by itself:
//! `build.watch(&informer).keys(..)` says whom. What a pass writes with `build.client()` is in these listers when the
//! call returns.
//!
//! **The constructor** is the only place where a [`Context`](prelude::Context) exists. What a pass may read is a field of
//! the reconciler. A type that implements [`Inject`](prelude::Inject) is made on first request, once in a process.
//! Passes begin when each informer that the constructor asked for has read its first list.
//!
//! **Roles** beyond reconciling are traits and a word to the builder: [`FinalizeKind`](prelude::FinalizeKind) and
//! `.finalizing()`, [`ObserveKind`](prelude::ObserveKind) and `.observing()` on replicas that do not lead,
//! [`ObserveDeletion`](prelude::ObserveDeletion) and `.observing_deletion()`. A controller without a Kind of its own is a
//! [`ReconcileKey`](prelude::ReconcileKey).
//!
//! **Blocking** code belongs in `tokio::task::spawn_blocking`, and long waits outside the pass: start them, end the
//! pass, and wake its key by `build.queue()` when there is an answer. What is kept for a key meanwhile, such as the task
//! that waits, goes into `build.per_key()`: it is dropped with the object.
//!
//! **The process** is [`sharedmain`]: its documentation lists flags, environment, `config-observability`, probes and
//! metrics.
//!
//! # How do I …
//!
//! | | call | elsewhere |
//! | --- | --- | --- |
//! | wake an object by what it names | `build.track()`, and `get` in the pass | Knative's tracker; `Watches` with a map function |
//! | wake it by what it controls | `build.owns()` | `Owns`; `Controller::owns` |
//! | wake it by anything else | `build.watch(&informer).keys(..)`, with [`keys`](prelude::keys) for labels and namespaces | `EnqueueRequestsFromMapFunc`; `Controller::watches` |
//! | look at some of those events only | `build.watch(&informer).filter(..)`, with [`label`](prelude::label), [`annotation`](prelude::annotation) and others | predicates; `FilteringResourceEventHandler` |
//! | serve some objects of the Kind only | [`Controller::selected`](prelude::Controller::selected) by label, field or namespace; `.class(annotation, value)`, `.filter(filter)` | `cache.Options.ByObject`; class filters |
//! | look again after a while | [`Outcome::after`](prelude::Outcome::after) | `RequeueAfter`; `Action::requeue` |
//! | look again when something outside happens | `build.queue()`, [`Queue::add`](prelude::Queue::add) and [`add_after`](prelude::Queue::add_after) | `source.Channel`; `reconcile_on` |
//! | find objects by a value of theirs | [`Informer::index`](prelude::Informer::index) | field indexes; indexers |
//! | read what the cache may not have yet | [`Informer::newest`](prelude::Informer::newest), or `build.client()` | `APIReader` |
//! | reconcile cluster-scoped objects | as any other; what they name lies in no namespace of theirs: [`Tracked::get_in`](prelude::Tracked::get_in) | |
//! | tell of other objects, or outside a pass | `build.recorder()` | `EventRecorder` |
//! | keep something for each object | `build.per_key()` | a map that nobody empties |
//! | add a metric | `cx.metrics()`, a registry of prometheus 0.14 | `metrics.Registry` |
//! | add a flag | [`Main::flags`](prelude::Main::flags), with clap 4 | `flag` |
//! | read configuration that may change | `build.config::<T>()` | `configmap.Store` |
//! | serve two versions of a Kind | [`Convertible`](prelude::Convertible), `Webhook::conversion`, and one definition of both by `kube::core::crd::merge_crds` | hub and spokes |
//! | limit requests | `--kube-api-qps`, `--kube-api-burst`; none unless asked for | the same flags |
//!
//! # Webhooks
//!
//! [`webhook`] fills in defaults and refuses what a Kind calls invalid before the API server stores it: a Kind says so by
//! [`Validatable`](prelude::Validatable) and by [`Kind::set_defaults`](prelude::Kind::set_defaults), a [`Webhook`](prelude::Webhook) answers, and
//! [`Main::webhook`](prelude::Main::webhook) runs it, with certificates that are made, trusted and renewed by themselves.
//! [`Convertible`](prelude::Convertible) says how versions become each other. A test needs no server: [`Webhook`'s
//! page](prelude::Webhook) shows one in five lines.
//!
//! # Testing
//!
//! [`testing`] has two kinds of tests: a table test runs one pass of the program's own constructor over given objects
//! and says what it wrote; a [`ControlPlane`](testing::ControlPlane) is a real API server on 127.0.0.1.
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
//! kube 4 and k8s-openapi 0.28 belong together, and kube-leader-election would take a later k8s-openapi: where
//! `cargo tree -i k8s-openapi` finds two, run `cargo update k8s-openapi@0.29.0 --precise 0.28.0`. TLS is rustls with
//! ring. Beside reknit a Kind of one's own needs kube, schemars, serde and serde_json, and a program chooses the version
//! of Kubernetes by a feature of k8s-openapi (`latest`, `v1_33`), which reknit leaves to it.

pub use reknit_apis as apis;
pub use reknit_injection as injection;
pub use reknit_reconciler as reconciler;
pub use reknit_sharedmain as sharedmain;
pub use reknit_testing as testing;
pub use reknit_webhook as webhook;

/// The names that most controllers use.
pub mod prelude {
    pub use reknit_apis::{
        Addressable, ConditionSet, Defaultable, DuckStatus, FieldError, KRShaped, KReference, Key, Kind,
        Request, Url, Validatable, kind,
    };
    pub use reknit_injection::{
        Change, Config, Context, FromConfigMap, Informer, Inject, Selection, annotation, label, select,
    };
    pub use reknit_reconciler::{
        Controller, Error, Event, FinalizeKind, ObserveKind, Outcome, Owned, Permanent, Queue, ReconcileKind,
        Result, Tracked, TrackedAny, keys,
    };
    pub use reknit_sharedmain::{self as sharedmain, Main};
    pub use reknit_webhook::Webhook;
}

/// The README's controller compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
