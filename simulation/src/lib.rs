//! Simulations of Kubernetes controllers: whole programs against what really happens.
//!
//! A simulation runs the replicas of a program, with the constructors that the program uses, real caches, queues and
//! leader election, on a paused clock and against an API server in memory. Each seed injects other faults: crashes
//! between two writes, lost responses, lagging watches, conflicts, an overloaded API server, pauses and partitions.
//! Then it checks rules that hold for every controller, and those that a test adds.
//!
//! ```
//! use std::time::Duration;
//!
//! use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
//! use reknit_injection::Context;
//! use reknit_reconciler::{Controller, Outcome, Owned, ReconcileKind, Result};
//! use reknit_simulation::simulation;
//!
//! /// Creates a ConfigMap in each Namespace.
//! struct Greeter {
//!     maps: Owned<ConfigMap>,
//! }
//!
//! impl ReconcileKind for Greeter {
//!     type Kind = Namespace;
//!     async fn reconcile_kind(&self, namespace: &Namespace, _: &mut ()) -> Result<Outcome> {
//!         let mut map = ConfigMap::default();
//!         map.metadata.namespace = namespace.metadata.name.clone();
//!         map.metadata.name = Some("greeting".into());
//!         self.maps.apply(namespace, map).await?;
//!         Ok(Outcome::done())
//!     }
//! }
//!
//! fn controller(cx: &Context) -> Result<Controller> {
//!     let mut build = Controller::of::<Namespace>(cx);
//!     let maps = build.owns();
//!     Ok(build.reconciler(Greeter { maps }).build())
//! }
//!
//! let mut shop = Namespace::default();
//! shop.metadata.name = Some("shop".into());
//! simulation([controller])
//!     .at(Duration::from_secs(1), move |cluster| cluster.create(shop.clone()))
//!     .finally("the greeting exists", |cluster| cluster.get::<ConfigMap>("shop/greeting").is_some())
//!     .seeds(0..5)
//!     .run();
//! ```
//!
//! # Rules
//!
//! - Each controller runs. It comes to rest: no hot loop, and at the end nobody writes.
//! - The final state is that of a run without faults. Times, uids, versions and generated names do not count.
//! - No key has two passes at once, and no write is sent for a key outside of the term that its Lease shows.
//! - Deleted objects go: finalizers end. Nothing has an owner that is gone.
//! - No object is written back and forth, no pass panics, and the program runs on.
//!
//! # Reproducible runs
//!
//! A failure names its seed; `REKNIT_SIM_SEED=7 cargo test …` runs it again. The same seed sends the same requests in
//! every process on the same architecture, if the controllers depend on nothing else than the objects, reknit's `Clock`
//! and tokio's time. A simulation notices if they depend on more, such as the order of a HashMap, and shows the first
//! request that differs. Threads, and so `spawn_blocking`, sockets and files are outside of the simulation.

mod admission;
mod cluster;
mod discovery;
mod faults;
mod html;
mod link;
mod observer;
mod oracles;
mod random;
mod replica;
mod report;
mod runner;
mod scenario;
mod server;
mod simulation;
mod stubs;
mod time;
mod timeline;
mod trace;
mod watchdog;
mod world;

pub use self::{
    admission::{Attempt, quotas_refuse},
    cluster::Cluster,
    faults::Fault,
    simulation::{Simulation, Verdict, simulation},
    stubs::{deployments_roll_out, jobs_complete, pods_get_ready},
};
