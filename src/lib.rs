//! A framework for Kubernetes controllers with the programming model of Knative's Go libraries.
//!
//! You declare what your controller reads, and fill in a status. The framework watches, caches and queues, elects
//! leaders, adds and removes finalizers, writes the status and records events.
//!
//! # Example
//!
//! This controller sets the condition `Ready` of a `Wish` to True while the Service that the `Wish` names exists, and
//! to False otherwise.
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
//!     duck: DuckStatus, // Knative's common status fields: observedGeneration and conditions
//! }
//!
//! // Declares the Kind, with Knative's conditions in the field `duck` of its status.
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
//!         // This also enqueues the Wish when that Service is created, changed or deleted.
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
//!     Main::new("wishes").controller(controller).run()
//! }
//! ```
//!
//! # Concepts
//!
//! Learn these names when you need them:
//!
//! | for | names |
//! | --- | --- |
//! | a first controller, as above | [`kind!`](prelude::kind), [`DuckStatus`](prelude::DuckStatus) and its `CONDITIONS`, [`ReconcileKind`](prelude::ReconcileKind), [`Outcome`](prelude::Outcome), [`Result`](prelude::Result), [`Context`](prelude::Context), [`Controller`](prelude::Controller), [`Tracked`](prelude::Tracked), [`Main`](prelude::Main) |
//! | children | [`Owned`](prelude::Owned), [`apply`](prelude::Owned::apply), its error [`NotApplied`](prelude::NotApplied), [`OwnedOptions`](reconciler::OwnedOptions) |
//! | references | [`KReference`](prelude::KReference), [`Tracked::get_in`](prelude::Tracked::get_in) |
//! | Kinds that are known only at run time | [`Kinds`](reconciler::Kinds), [`TrackedAny`](reconciler::TrackedAny), [`get_as`](reconciler::TrackedAny::get_as), [`Duck`](reconciler::Duck), [`OwnedAny`](reconciler::OwnedAny), [`OwnedAny::kind`](reconciler::OwnedAny::kind) |
//!
//! **A reconcile** gets the object, read-only, and a status to fill in. The framework writes the status afterwards if
//! it changed. A reconcile returns an [`Outcome`](prelude::Outcome): done, requeue after a delay, or skip (as done, but
//! counted as skipped in the metrics), optionally with an event. Or it returns an [`Error`](prelude::Error), to which
//! `?` converts any other error. A failed reconcile is retried with backoff unless the error is
//! [`permanent`](prelude::ResultExt::permanent).
//!
//! **Reads** come from memory. [`Tracked`](prelude::Tracked) is a lister that remembers which objects each reconcile
//! read, and enqueues the reconciled object when one of them is created, changed or deleted. (Knative has a tracker and
//! a lister for this.) [`Owned`](prelude::Owned) lists the objects that an object controls,
//! [applies](prelude::Owned::apply) a child by name, [creates](prelude::Owned::create) and deletes children with
//! generated names, and [claims](prelude::Owned::claim) orphans as a ReplicaSet does. An
//! [`Informer`](prelude::Informer) enqueues nothing by itself; `build.watch(&informer).keys(..)` maps its changes to
//! keys. You read your own writes: when a request through `build.client()` returns, all of these contain its result.
//!
//! **The constructor** builds a controller from a [`Context`](prelude::Context), like Knative's `NewController` or
//! controller-runtime's `SetupWithManager`. The Context exists only there, so everything that a reconcile reads must be
//! a field of the reconciler. `cx.get()` returns any type that implements [`Inject`](injection::Inject) and creates it
//! once per process. Reconciles start when all informers that the constructor requested have synced.
//!
//! **Other roles** of a reconciler are traits that you enable on the builder: [`FinalizeKind`](prelude::FinalizeKind)
//! by `.finalizing()`, [`ObserveKind`](prelude::ObserveKind) by `.observing_as_follower()`, and
//! [`ObserveDeletion`](reconciler::ObserveDeletion) by `.observing_deletion_as_leader()`, and
//! [`ReleaseKind`](reconciler::ReleaseKind) by `.releasing()`. A controller without a Kind of
//! its own implements [`ReconcileKey`](reconciler::ReconcileKey).
//!
//! **A Kind** is declared with [`kind!`](prelude::kind), optionally with Knative's conditions, which the framework
//! initializes, or with Kubernetes' own (`metav1`), whose `observedGeneration` it sets. The built-in Kinds of
//! Kubernetes are already declared.
//!
//! **Blocking code.** Run it in `tokio::task::spawn_blocking`. Do not wait long in a reconcile: start a task, return, and
//! let the task enqueue the key through `build.queue()`. Keep such a task, or other state of a key, in
//! `build.per_key()`, which drops it when the object is deleted.
//!
//! **The process** is run by [`sharedmain`].
//! [Operations](https://github.com/reknit/reknit/blob/main/docs/operations.md) lists its flags, environment variables,
//! ConfigMaps, probes and metrics.
//!
//! # Coming from Knative, controller-runtime or kube-runtime
//!
//! | in Knative, controller-runtime or kube-runtime | here |
//! | --- | --- |
//! | `injection.Context`, `Manager`, the `Context` of kube-runtime | [`Context`](prelude::Context) in the constructor, fields of the reconciler afterwards |
//! | generated informers and listers, the manager's cache, `reflector::Store` | [`Informer`](prelude::Informer), [`Tracked`](prelude::Tracked), [`Owned`](prelude::Owned) |
//! | `ReconcileKind`, `Reconcile`, the reconcile function | [`ReconcileKind`](prelude::ReconcileKind) |
//! | `resolver.URIResolver` | [`AddressResolver`](knative::AddressResolver) |
//! | `reconcile.Result`, `Action` | [`Outcome`](prelude::Outcome) |
//! | `controller.NewPermanentError`, `reconcile.TerminalError` | [`ResultExt::permanent`](prelude::ResultExt::permanent) |
//! | `fmt.Errorf("failed to …: %w", err)`, `anyhow::Context` | [`ResultExt::context`](prelude::ResultExt::context) |
//! | `Status().Update`, `patch_status` | nothing to call: fill in the status |
//! | `conditionSet.Manage(status).MarkTrue(..)` | `MyKind::CONDITIONS.manage(status).mark_true(..)` |
//! | `PropagateSinkBindingStatus(..)` and the like | [`Conditions::propagate`](apis::Conditions::propagate) |
//! | `meta.SetStatusCondition(&conditions, ..)`, `meta.IsStatusConditionTrue` | [`StatusConditions`](prelude::StatusConditions), for a Kind with `conditions: metav1(conditions)` in [`kind!`](prelude::kind) |
//! | `sharedmain.MainWithContext`, `mgr.Start` | [`Main`](prelude::Main) |
//!
//! The [examples](https://github.com/reknit/reknit/tree/main/examples) have whole ports: `cronjob` is kubebuilder's
//! CronJob tutorial, `sequence` is Knative Eventing's Sequence, and `eventing` is its ContainerSource, SinkBinding and
//! Trigger.
//!
//! # How do I …
//!
//! | to | use | in Knative, controller-runtime or kube-runtime |
//! | --- | --- | --- |
//! | enqueue an object when an object that it references changes | `build.track()`, and `get` in the reconcile | Knative's tracker; `Watches` with a map function |
//! | enqueue an object when an object that it controls changes | `build.owns()` | `Owns`; `Controller::owns` |
//! | watch the target of a reference whose Kind is only known at run time | `build.track_any(kinds)`, with the allowed [`Kinds`](reconciler::Kinds) | Knative's tracker with a duck type |
//! | find the address of a [`Destination`](knative::Destination) | `AddressResolver::new(build.track_any(kinds))`, and [`AddressResolver::resolve`](knative::AddressResolver::resolve) in the reconcile; the feature `knative` | Knative's `URIResolver` |
//! | create or restore a child, and know which of the two happened | [`Owned::apply`](prelude::Owned::apply), [`Applied`](reconciler::Applied) | server-side apply; `controllerutil.OperationResult` |
//! | create or update a child without server-side apply | [`Owned::create_or_update`](prelude::Owned::create_or_update) | `controllerutil.CreateOrUpdate` |
//! | replace a child whose field is immutable | [`Owned::apply_or_replace`](prelude::Owned::apply_or_replace), with [`has_set_fields`](apis::equality::has_set_fields) | `Delete`, then `Create` |
//! | compare what you want with what the API server stored | [`has_set_fields`](apis::equality::has_set_fields), [`are_equal`](apis::equality::are_equal) | `equality.Semantic` |
//! | take over the fields of children that an earlier controller or component wrote | [`OwnedOptions::upgrading_from`](reconciler::OwnedOptions::upgrading_from) | client-go's `csaupgrade` |
//! | own children of a Kind that is only known at run time, by a template | `build.owns_any(kinds, options)` and [`OwnedAny::kind`](reconciler::OwnedAny::kind); [`OwnedAny::of`](reconciler::OwnedAny::of) lists the children of earlier templates too | Knative's duck types with a dynamic client |
//! | read objects of any Kind by the fields that they have in common | [`TrackedAny::get_as`](reconciler::TrackedAny::get_as) or [`Duck::of`](reconciler::Duck::of), with a [`Duck`](reconciler::Duck) | Knative's duck informers |
//! | write other objects, or the reconciled one itself | an `Api` of `build.client()`, with [`merge_patch`](reconciler::merge_patch) for the difference and [`Builder::allows`](reconciler::Builder::allows) for the permission | a clientset; `client.Update`; `Api::patch` |
//! | set the owner reference of a child yourself | [`controller_reference`](reconciler::controller_reference) | `kmeta.NewControllerRef`; `controllerutil.SetControllerReference` |
//! | delete a child with its dependents | [`Owned::delete`](prelude::Owned::delete), in the background; [`delete_with`](prelude::Owned::delete_with) | `Delete` with `PropagationPolicy` |
//! | inject into the pod templates of other objects, as a SinkBinding does | [`Bindable`](knative::Bindable), [`Binder`](knative::Binder), [`BindingMutator`](knative::BindingMutator); the feature `knative` | Knative's `psbinding` |
//! | map changes of other objects to keys | `build.watch(&informer).keys(..)`, with [`keys`](reconciler::keys) for labels and namespaces | `EnqueueRequestsFromMapFunc`; `Controller::watches` |
//! | filter these changes | `build.watch(&informer).filter(..)`, with [`label`](injection::label), [`annotation`](injection::annotation) and other filters in [`injection`] | predicates; `FilteringResourceEventHandler` |
//! | reconcile only some objects of the Kind | [`Controller::selected`](prelude::Controller::selected) by label, field or namespace; `.class(annotation, value)`, `.filter(..)` | `cache.Options.ByObject`; class filters |
//! | work in some namespaces only, with a Role in each | the flag [`NamespaceFlag`](sharedmain::NamespaceFlag), or [`Controller::selected`](prelude::Controller::selected) with `select().namespaces(..)` | `cache.Options.DefaultNamespaces` |
//! | reconcile again after a while | [`Outcome::after`](prelude::Outcome::after) | `RequeueAfter`; `Action::requeue` |
//! | read the time from a clock that tests control | `cx.get::<Clock>()`, a [`Clock`](injection::Clock); in tests a [`FakeClock`](testing::FakeClock): setting it also enqueues the delayed keys that become due | `clock.Clock` of k8s.io/utils and its `testing.FakeClock` |
//! | enqueue a key from an external event | `build.queue()`, [`Queue::add`](prelude::Queue::add) and [`add_after`](prelude::Queue::add_after) | `source.Channel`; `reconcile_on` |
//! | clean up before an object is deleted | [`FinalizeKind`](prelude::FinalizeKind) and `.finalizing()` | `FinalizeKind`; `controllerutil.AddFinalizer`; `finalizer` |
//! | clean up when an object leaves the class, the filter or the selection | [`ReleaseKind`](reconciler::ReleaseKind) and `.releasing()` | |
//! | build one state in every replica | [`ObserveKind`](prelude::ObserveKind) and `.observing_as_follower()` ([how](https://github.com/reknit/reknit/blob/main/docs/how-to/shared-state.md)) | Knative's `ReadOnlyInterface` |
//! | track only changes that matter | [`Builder::track_where`](reconciler::Builder::track_where) | predicates |
//! | track by labels | [`Tracked::matching`](prelude::Tracked::matching), [`matching_in`](prelude::Tracked::matching_in) | |
//! | run code between the first lists and the first reconcile | [`Builder::on_synced`](reconciler::Builder::on_synced) | `Runnable` after `WaitForCacheSync` |
//! | find objects by a computed value | [`Informer::index`](prelude::Informer::index) | field indexes; indexers |
//! | wait for a state of an object | [`Informer::until`](prelude::Informer::until) | `await_condition` |
//! | read from the API server, not the cache | `build.client()` | `APIReader` |
//! | fail instead of reading an older state if the newest one cannot be decoded | [`Informer::newest`](prelude::Informer::newest) | |
//! | reconcile cluster-scoped objects | as namespaced ones; to read a namespaced object in the reconcile, pass its namespace to [`Tracked::get_in`](prelude::Tracked::get_in) | |
//! | record events outside a reconcile | `build.recorder()` | `EventRecorder` |
//! | keep state for each object | `build.per_key()` | a map in the reconciler that you clean up yourself |
//! | add a metric | `cx.metrics()`, a registry of prometheus 0.14 | `metrics.Registry` |
//! | add a flag | [`Main::flags`](prelude::Main::flags), with clap 4 | `flag` |
//! | read configuration that may change | `build.config::<T>()`, with [`FromConfigMap`](prelude::FromConfigMap); a change enqueues every key | `configmap.Store` |
//! | call a function when such configuration changes | `build.config_with(..)` | `onAfterStore` |
//! | read feature flags | [`Features`](injection::Features), as a field of your [`FromConfigMap`](prelude::FromConfigMap) type, as in [Configuration that changes](https://github.com/reknit/reknit/blob/main/docs/how-to/configuration.md) | `feature.Flags` |
//! | enqueue every object, or those that a filter of keys admits | `build.queue()`, [`resync`](reconciler::Queue::resync) and [`resync_where`](reconciler::Queue::resync_where) | `GlobalResync`, `FilteredGlobalResync` |
//! | set defaults, validate | [`kind!`](prelude::kind) with `defaults`, [`Validatable`](prelude::Validatable), [`Webhook`](prelude::Webhook) | `SetDefaults`, `Validate`; `admission.Defaulter`, `admission.Validator` |
//! | validate by other objects | [`Webhook::validator`](webhook::Webhook::validator), [`Validator`](webhook::Validator) | `validation.Callback`; `admission.CustomValidator` |
//! | decide about deletions | [`Validatable::DELETION_RULE`](apis::Validatable::DELETION_RULE), [`DeletionValidator`](webhook::DeletionValidator) | `apis.IsInDelete`; `ValidateDelete` |
//! | read a ConfigMap in defaults and validation | [`Request::config`](apis::Request::config), [`Webhook::config`](prelude::Webhook::config) | the `configmap.Store` in the context of `SetDefaults` |
//! | say which fields are invalid, and how | [`FieldError`](prelude::FieldError), with [`CauseType`](apis::CauseType) | `apis.FieldError`; `field.ErrorList` |
//! | print a CustomResourceDefinition | [`definition_of::<MyKind>()`](apis::definition_of), with [`structural`](apis::structural) on specs that have enums with data, and [`drop_descriptions`](apis::drop_descriptions) on fields of core types | controller-gen; `CustomResourceExt::crd` |
//! | patch an object by its difference to an earlier state | [`merge_patch`](reconciler::merge_patch) | `duck.CreateMergePatch`; `client.MergeFrom` |
//! | declare a source, a channel or a binding | [`SourceSpec`](knative::SourceSpec), [`ChannelableSpec`](knative::ChannelableSpec), [`BindingSpec`](knative::BindingSpec), [`DeliverySpec`](knative::DeliverySpec) and their statuses; the feature `knative` | Knative's `duck/v1` |
//! | serve two versions of a Kind | [`Convertible`](apis::Convertible), `Webhook::conversion`, and one CustomResourceDefinition for both with `kube::core::crd::merge_crds` | hub and spokes |
//! | run the webhook in a process of its own | `--only=webhook`, and `--only=controllers` for the rest | none |
//! | run on a laptop without the webhook | `ENABLE_WEBHOOKS=false`, or `--disable-controllers webhook` | `ENABLE_WEBHOOKS` |
//! | run without a controller of the program | `--disable-controllers` with its name | Knative's `MainNamed` |
//! | run a server beside the controllers | [`Task`](sharedmain::Task), with a [readiness](sharedmain::Task::readiness) check | `Runnable` |
//! | run controllers in a test against a real API server | [`Controllers`](testing::Controllers) with [`ControlPlane`](testing::ControlPlane) | envtest and `mgr.Start` |
//! | run the whole program in a test, as a child process | [`Program`](testing::Program) | |
//! | test the program against crashes, lost responses, stale caches and pauses | [`simulation`](mod@simulation) ([how](https://github.com/reknit/reknit/blob/main/docs/how-to/simulation.md)); the feature `simulation` | |
//! | generate RBAC rules from the code | [`Main::rbac`](prelude::Main::rbac); a table test checks them ([how](https://github.com/reknit/reknit/blob/main/docs/how-to/rbac.md)) | `+kubebuilder:rbac` markers |
//! | declare a request of your own code for the generated RBAC rules | `build.allows(..)` with a [`Permission`](injection::Permission), [`OwnedOptions::verbs`](reconciler::OwnedOptions::verbs), [`bind_cluster_roles`](reconciler::OwnedOptions::bind_cluster_roles), [`Kinds::of`](reconciler::Kinds::of) | `+kubebuilder:rbac` markers |
//! | test that each permission is needed | [`each_permission_is_needed`](testing::each_permission_is_needed) | |
//! | limit requests | `--kube-api-qps`, `--kube-api-burst`; there is no limit by default | the same flags |
//!
//! # Webhooks
//!
//! [`webhook`] sets defaults and rejects invalid objects before the API server stores them. Declare defaults in
//! [`kind!`](prelude::kind) and validation rules with [`Validatable`](prelude::Validatable). A
//! [`Webhook`](prelude::Webhook) collects the Kinds, and [`Main::webhook`](prelude::Main::webhook) serves it. The
//! framework creates and rotates the serving certificate and keeps the CA bundles of the webhook configurations
//! current. [`Convertible`](apis::Convertible) converts between versions. The documentation of
//! [`Webhook`](prelude::Webhook) shows a test without a server. If an object is refused, kubectl
//! prints a line for each invalid field, as for faults that the API server finds itself.
//!
//! # Testing
//!
//! [`testing`] supports two kinds of tests. A table test runs the program's own constructor and one reconcile (a
//! "pass") on given objects, against an in-memory API server, and compares the writes and events. A
//! [`ControlPlane`](testing::ControlPlane) is a real API server on 127.0.0.1, which can call the program's webhook
//! ([`serve_webhook`](testing::ControlPlane::serve_webhook)). Besides, a [simulation](mod@simulation) runs the replicas of
//! the program on a paused clock, against crashes, lost responses, stale caches and pauses, and checks what must hold
//! whatever fails.
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
//! let effects = given(namespace).reconcile(controller, "quiet").await;
//! assert!(effects.writes().is_empty());
//! assert_eq!(effects.events()[0].reason, "Greeted");
//! # }
//! ```
//!
//! # Features
//!
//! None is enabled by default.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `knative` | the module [`knative`]: the types of Knative Eventing, destinations and bindings |
//! | `otlp` | traces, and metrics that the process pushes to an OpenTelemetry collector; Prometheus needs no feature |
//! | `profiling` | CPU profiles at `/debug/pprof/profile` |
//! | `simulation` | the module [`simulation`]; enable it in `[dev-dependencies]` |
//! | `testing` | the module [`testing`]; enable it in `[dev-dependencies]` |
//! | `webhook` | the module [`webhook`] and [`Main::webhook`](prelude::Main::webhook) |
//!
//! # Versions
//!
//! kube 4 requires k8s-openapi 0.28, and TLS uses rustls with ring. A crate that defines a custom resource also depends
//! on kube, schemars, serde and serde_json. A program selects the Kubernetes version by a feature of k8s-openapi
//! (`latest`, `v1_33`); reknit enables none.
//! [Installation](https://github.com/reknit/reknit/blob/main/docs/installation.md) has the dependencies, and what to do
//! if cargo selects two versions of k8s-openapi.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub use reknit_apis as apis;
pub use reknit_injection as injection;
#[cfg(feature = "knative")]
pub use reknit_knative as knative;
pub use reknit_leadership as leadership;
pub use reknit_reconciler as reconciler;
pub use reknit_sharedmain as sharedmain;
#[cfg(feature = "simulation")]
pub use reknit_simulation as simulation;
#[cfg(feature = "testing")]
pub use reknit_testing as testing;
#[cfg(feature = "webhook")]
pub use reknit_webhook as webhook;

/// The names that most controllers use. The others are in the modules, such as [`reconciler`] for Kinds that are known
/// only at run time.
pub mod prelude {
    pub use reknit_apis::{
        ConditionSet, DuckStatus, FieldError, KReference, Key, Kind, Request, StatusConditions, Validatable,
        kind,
    };
    // The trait of `CONDITIONS`.
    pub use reknit_apis::KRShaped as _;
    pub use reknit_injection::{Config, Context, FromConfigMap, Informer, select};
    pub use reknit_reconciler::{
        Controller, Error, Event, FinalizeKind, NotApplied, ObserveKind, Outcome, Owned, Queue,
        ReconcileKind, Result, ResultExt, Tracked,
    };
    pub use reknit_sharedmain::Main;
    #[cfg(feature = "webhook")]
    pub use reknit_webhook::Webhook;
}

#[cfg(doctest)]
mod book;
