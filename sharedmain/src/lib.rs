//! Runs controllers as a process: flags, signals, logging, leader election, probes, metrics, and the order in which
//! they start and stop.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use reknit_injection::Context;
//! use reknit_reconciler::{Controller, Key, Outcome, ReconcileKey, Result};
//! use reknit_sharedmain::Main;
//!
//! /// Logs each key.
//! struct Logger;
//!
//! impl ReconcileKey for Logger {
//!     async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
//!         tracing::info!(%key, "reconciled");
//!         Ok(Outcome::done())
//!     }
//! }
//!
//! fn controller(cx: &Context) -> Result<Controller> {
//!     Ok(Controller::named("logger", cx).reconciler(Logger))
//! }
//!
//! fn main() -> ExitCode {
//!     Main::new("controller").controller(controller).run()
//! }
//! ```
//!
//! [`Main`] also takes tasks that run beside the controllers, values for constructors, and flags of the program.
//!
//! [Operations](https://github.com/reknit/reknit/blob/main/docs/operations.md) lists the flags, the environment
//! variables, the keys of the ConfigMaps, the probes and the metrics.
//!
//! # Start
//!
//! A process starts in these steps. If one fails, the process ends with a one-line error and exit status 1, or 2 for an
//! invalid command line.
//!
//! 1. It parses flags and environment, and installs signal handlers.
//! 2. It finds the API server and the credentials in the first of these that exists: `--kubeconfig`, `KUBECONFIG` (a
//!    list of paths as in kubectl), `~/.kube/config`, `--server` without a kubeconfig, the service account of the pod.
//! 3. It runs all constructors. They start nothing, so a failure leaves nothing to clean up. Then it opens the port of
//!    the probes.
//! 4. It gets the version of the API server. Transient errors (refused or reset connections, timeouts, names that do
//!    not resolve, 429, 5xx) are logged and retried for a minute (`--startup-timeout`). Permanent errors (rejected
//!    credentials, invalid TLS) are not retried.
//! 5. It reads `config-logging`, `config-observability` and `config-leader-election`, and watches them. A change that
//!    takes effect only at the next start is logged as a warning. It opens the ports of metrics and profiling. If none
//!    of the ConfigMaps exists, it checks that the namespace `SYSTEM_NAMESPACE` exists. Without permission to read the
//!    namespace, the check is skipped.
//! 6. It starts informers, then controllers with their electors, and tasks. Each controller waits for its own informers
//!    only.
//!
//! # Shutdown
//!
//! On SIGTERM or SIGINT, readiness fails with `shutting down`, and controllers take no more keys. Running reconciles
//! and tasks may continue until the deadline (`--shutdown-timeout`). Then leases are released, queued events are
//! published, the last metrics and spans are exported, and the exit status is 0. A second signal ends the process at
//! once with status 1. If a task fails, the process shuts down in the same order, with status 1.
//!
//! # Threads
//!
//! Controllers, tasks and webhooks run in a runtime with a thread for each processor that the process may use, and at
//! least two. In a container, the CPU limit determines that number. A reconcile or task that computes or blocks without
//! an `.await` occupies one of these threads, and delays the tasks that it has just woken. If every thread is occupied
//! in this way, other reconciles and webhooks stop. Run long computations in `tokio::task::spawn_blocking`.
//!
//! Probes, metrics, leader election and the shutdown have a runtime and a thread of their own, so they go on meanwhile.
//! The verbose probes and a warning name the running reconciles. Once the threads have been blocked for the renew
//! deadline, leases are not renewed any more, so that another replica takes over; after 40 seconds the process is not
//! ready, and after 15 minutes not healthy.
//!
//! # The client
//!
//! The client of constructors repeats a request that an overloaded API server refused with `Retry-After` (429, 503, and
//! 504 for a GET) for up to five seconds, because a worker waits for it. If the server asks for a longer wait, the
//! request fails at once: the worker takes other keys, and the key is retried after the time that the server asked for,
//! at most five minutes. Any other error fails the reconcile, which is retried with backoff. Requests other than
//! watches and streams time out after 75 seconds. The API server ends such requests after 60 seconds, so a connection
//! that is silent for 75 seconds is dead. TCP keepalive closes dead connections of watches within two minutes. Small
//! writes are sent at once (`TCP_NODELAY`). Leases have a client with its own connections.
//!
//! Credentials are shared by all clients, and may change while the process runs. Files of a kubeconfig (certificates,
//! keys, authorities, tokens) are read again every ten seconds, and a certificate that does not fit its key yet is not
//! used. An exec credential plugin runs again a minute before its credentials expire, or after three quarters of their
//! life if that is shorter, and after the API server rejected them, but at most three times a minute. The token of an
//! `auth-provider` named `oidc` is refreshed, but not written to the kubeconfig; other auth-providers are not
//! supported. If the API server answers every request with 401 for two minutes, the health probe fails.
//!
//! # Logs
//!
//! Each line is a JSON object with the keys of Knative's components: `severity`, `timestamp`, `logger`, `caller`,
//! `message`, and the fields of the event and its spans. A field with the name of one of these keys gets the prefix
//! `fields.`. On a terminal, lines are text.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod cli;
mod client;
mod config;
mod console;
mod election;
mod health;
mod observe;
mod plan;
mod process;
mod rbac;
#[cfg(feature = "webhook")]
mod webhook;

pub use cli::{ListenAddress, Main, NamespaceFlag, namespace};
pub use client::connect;
pub use process::Task;
pub use rbac::Rbac;

/// Items for the other crates of reknit. They are not part of the public API, and may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::{plan::plan, process::simulated::SimulatedProgram};
}
