//! What tests of controllers need: a real API server, a way to wait for what a controller does, and single passes
//! against an API server in memory.
//!
//! # A real API server
//!
//! [`ControlPlane`] starts etcd and kube-apiserver for a test, on 127.0.0.1 and in a temporary folder, in three seconds.
//! Watches, conflicts, finalizers, RBAC, admission and server-side apply are then the real ones, which no fake gets right.
//!
//! The programs are found as controller-runtime's envtest finds them: in the folder that `KUBEBUILDER_ASSETS` names. What
//! it lacks, or all where it is not set, is looked for in `${XDG_CACHE_HOME:-~/.cache}/reknit/envtest`, which the script
//! hack/setup-envtest.sh of reknit's repository fills; `setup-envtest use -p path`, from the controller-runtime project,
//! fetches a folder for `KUBEBUILDER_ASSETS` too.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{
//!     Api, CustomResource,
//!     api::{Patch, PatchParams},
//! };
//! use reknit_testing::{ControlPlane, eventually};
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
//! # async fn run(client: kube::Client) {}
//! #[tokio::test]
//! # async fn hidden() {}
//! async fn a_greeting_is_copied_into_a_config_map() -> Result<(), Box<dyn std::error::Error>> {
//!     let plane = ControlPlane::shared().await?;
//!     plane.install::<Greeting>().await?;
//!     let namespace = plane.namespace("greeting").await?;
//!
//!     // With the rights it has where it is deployed; `plane.client()?` may do everything.
//!     plane.apply_path("config/200-rbac.yaml").await?;
//!     let controller = tokio::spawn(run(plane.client_as("example", "controller").await?));
//!
//!     let hello = Greeting::new("hello", GreetingSpec { text: "Hello".into() });
//!     let greetings: Api<Greeting> = Api::namespaced(plane.client()?, &namespace);
//!     greetings.create(&Default::default(), &hello).await?;
//!
//!     let config_maps: Api<ConfigMap> = Api::namespaced(plane.client()?, &namespace);
//!     let copy = eventually("the copy", Duration::from_secs(10), async || config_maps.get("hello").await).await;
//!     assert_eq!(copy.data.unwrap_or_default()["text"], "Hello");
//!     controller.abort();
//!     Ok(())
//! }
//! ```
//!
//! A control plane that is given [nodes](ControlPlane::nodes) runs Kubernetes' own controllers too: Deployments get pods,
//! and pods run. The script fetches what that takes; the folder that `setup-envtest` of controller-runtime fetches lacks it.
//!
//! Tests that stop the API server, or make it forget, [start](ControlPlane::start) one for themselves; the others share
//! [one for each process](ControlPlane::shared), each in a namespace of its own.
//!
//! # One pass, in memory
//!
//! [`given`] some objects, [`pass`](Given::pass) runs one pass of a controller, made by its own constructor, and
//! [`check`](Passed::check) compares what it did with a [`Want`]: how it ended, what it wrote in which order, which events
//! it recorded, and nothing else. Times are left out; failures are injected by verb and resource; an object changed in
//! memory is told; what differs is shown as a diff. A [`table`] runs many such cases and reports all that fail.
//! Requests are answered by an [`ApiServer`] in memory, at once and without any program: that is for the many cases of a
//! reconciler, a [`ControlPlane`] for how it works together with Kubernetes.
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
//! given(shop.clone()).pass(controller, "shop").await.check(Want::done().event(greeted.clone()));
//!
//! table(controller)
//!     .row("a refused event fails no pass", "shop", given(shop).failing(Verb::Create, "events", 403), Want::done().event(greeted))
//!     .row("what is not there is not greeted", "shop", nothing(), Want::skip())
//!     .run()
//!     .await;
//! # }
//! ```

mod api_server;
mod control_plane;
mod eventually;
mod in_memory;
mod table;

pub use self::{
    api_server::{ApiServer, Verb, Write},
    control_plane::{Builder, ControlPlane, Error},
    eventually::{Check, eventually},
    in_memory::{ControllerExt, InformerExt},
    table::{Given, Passed, Table, Want, given, nothing, table},
};
