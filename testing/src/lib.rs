//! Test utilities for controllers: a real API server, waiting for conditions, and single reconciles against an API
//! server in memory.
//!
//! # A real API server
//!
//! [`ControlPlane`] starts etcd and kube-apiserver for a test, on 127.0.0.1 and in a temporary folder, in three
//! seconds. Tests then see the real watches, conflicts, finalizers, RBAC, admission and server-side apply.
//!
//! The programs are searched for in the folder that `KUBEBUILDER_ASSETS` names, as controller-runtime's envtest does,
//! and then in `${XDG_CACHE_HOME:-~/.cache}/reknit/envtest`. The script hack/setup-envtest.sh of reknit's repository
//! fills that cache. `setup-envtest use -p path`, of the controller-runtime project, fetches a folder for
//! `KUBEBUILDER_ASSETS`.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{
//!     Api, CustomResource,
//!     api::{Patch, PatchParams},
//! };
//! use reknit_injection::Context;
//! use reknit_reconciler::{Controller, Result};
//! use reknit_testing::{ControlPlane, Controllers, eventually};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use serde_json::json;
//!
//! /// The Kind of the controller under test.
//! #[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Greeting", namespaced)]
//! struct GreetingSpec {
//!     text: String,
//! }
//!
//! # fn controller(cx: &Context) -> Result<Controller> { Err("".into()) }
//! #[tokio::test]
//! # async fn hidden() {}
//! async fn a_greeting_is_copied_into_a_config_map() -> Result<(), Box<dyn std::error::Error>> {
//!     let plane = ControlPlane::shared().await?;
//!     plane.install::<Greeting>().await?;
//!     let namespace = plane.namespace("greeting").await?;
//!
//!     // The controller has the permissions of its deployment; `plane.client()?` has all permissions.
//!     plane.apply_path("config/200-rbac.yaml").await?;
//!     let controllers = Controllers::new(plane.client_as("example", "controller").await?).controller(controller).start();
//!     controllers.synced(Duration::from_secs(10)).await;
//!
//!     let hello = Greeting::new("hello", GreetingSpec { text: "Hello".into() });
//!     let greetings: Api<Greeting> = Api::namespaced(plane.client()?, &namespace);
//!     greetings.create(&Default::default(), &hello).await?;
//!
//!     let config_maps: Api<ConfigMap> = Api::namespaced(plane.client()?, &namespace);
//!     let copy = eventually("the copy", Duration::from_secs(10), async || config_maps.get("hello").await).await;
//!     assert_eq!(copy.data.unwrap_or_default()["text"], "Hello");
//!     controllers.stop().await;
//!     Ok(())
//! }
//! ```
//!
//! A control plane with [nodes](ControlPlane::nodes) also runs Kubernetes' own controllers: Deployments get pods, and
//! pods run. hack/setup-envtest.sh installs the programs for that; controller-runtime's `setup-envtest` does not.
//!
//! Tests share [one control plane for each process](ControlPlane::shared), each in a namespace of its own. A test that
//! stops the API server or compacts etcd [starts](ControlPlane::start) its own.
//!
//! [`Program`] runs the whole program as a child process, to test its flags, leases, probes and shutdown.
//!
//! [`ControlPlane::serve_webhook`] serves the program's webhook in the test, and has the API server call it.
//!
//! # One reconcile, in memory
//!
//! With [`given`] a test describes the objects that exist. [`reconcile`](Given::reconcile) runs one reconcile with the
//! controller's own constructor, and [`check`](Effects::check) compares the effects with a [`Want`]: the outcome, the
//! writes in order, and the events. Any other effect is a failure, and so is an object that was changed in memory.
//! Times that the API server sets are not compared. Requests can be made to fail by verb and resource. A [`table`] runs
//! many such cases and reports all failures.
//!
//! An [`ApiServer`] in memory answers the requests, at once and without any program. Use it for the many cases of a
//! reconciler, and a [`ControlPlane`] for its interaction with Kubernetes. It answers watches too, so that whole
//! controllers can run against it, and [`ApiServer::handle`] lets a test deliver their events itself. The crate `reknit-apiserver` has the server
//! alone, for code that uses kube without reknit.
//!
//! ```
//! use k8s_openapi::api::core::v1::Namespace;
//! use reknit_injection::Context;
//! use reknit_reconciler::{Controller, Event, Outcome, ReconcileKind, Result};
//! use reknit_testing::{Verb, Want, given, nothing, table};
//!
//! struct Greeter;
//!
//! impl ReconcileKind for Greeter {
//!     type Kind = Namespace;
//!     async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
//!         Ok(Outcome::done().event(Event::normal("Greeted", "hello")))
//!     }
//! }
//!
//! fn controller(cx: &Context) -> Result<Controller> {
//!     Ok(Controller::of::<Namespace>(cx).reconciler(Greeter).build())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut shop = Namespace::default();
//! shop.metadata.name = Some("shop".into());
//! let greeted = Event::normal("Greeted", "hello");
//! given(shop.clone()).reconcile(controller, "shop").await.check(Want::done().event(greeted.clone()));
//!
//! table(controller)
//!     .row(
//!         "a refused event does not fail the reconcile",
//!         "shop",
//!         given(shop).failing(Verb::Create, "events", 403),
//!         Want::done().event(greeted),
//!     )
//!     .row("a missing namespace is not greeted", "shop", nothing(), Want::skip())
//!     .run()
//!     .await;
//! # }
//! ```

#[cfg(unix)]
mod control_plane;
mod controllers;
mod eventually;
mod fake_clock;
mod in_memory;
#[doc(hidden)]
pub mod internal;
#[cfg(unix)]
mod program;
mod table;
#[cfg(unix)]
mod watchdog;

pub use reknit_apiserver::{ApiServer, Reply, Watch, WatchEvent, Write};
pub use reknit_injection::Verb;

pub use self::{
    controllers::{Controllers, RunningControllers},
    eventually::{Check, eventually},
    fake_clock::FakeClock,
    in_memory::{ControllerExt, InformerExt},
    table::{
        Effects, Given, Recorded, Table, Want, each_permission_is_needed, given, nothing, recorded, table,
    },
};
// The programs of a control plane run in a shell, and a program is stopped by SIGTERM.
#[cfg(unix)]
pub use self::{
    control_plane::{Builder, ControlPlane, Error, WebhookServer},
    program::{Program, RunningProgram},
};
