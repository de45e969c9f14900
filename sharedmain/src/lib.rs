//! Runs controllers as a process: flags, signals, logging, leader election, probes, metrics, and the order in which
//! all of it starts and stops.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use reknit_injection::Context;
//! use reknit_reconciler::{Controller, Key, Outcome, ReconcileKey, Result};
//! use reknit_sharedmain as sharedmain;
//!
//! /// Looks at the keys it is woken for.
//! struct Looker;
//!
//! impl ReconcileKey for Looker {
//!     async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
//!         tracing::info!(%key, "looked at");
//!         Ok(Outcome::done())
//!     }
//! }
//!
//! fn controller(cx: &Context) -> Result<Controller> {
//!     Ok(Controller::named("looker", cx).reconciler(Looker))
//! }
//!
//! fn main() -> ExitCode {
//!     sharedmain::main("controller", &[controller])
//! }
//! ```
//!
//! [`main`] is all that most programs need. [`Main`] takes tasks that run beside the controllers, values that
//! constructors ask for, and flags of the program's own.
//!
//! # How a process starts
//!
//! In this order, and each step may end it with one line that says why (exit status 1; 2 for the command line):
//!
//! 1. Flags and environment are read and checked; signals are heeded.
//! 2. The API server and the credentials are found: `--kubeconfig`, `KUBECONFIG` (a list of paths, as kubectl has it),
//!    `~/.kube/config`, `--server` alone, the service account of the pod.
//! 3. All constructors run. Nothing has started yet, so nothing has to be undone where one fails. The port of the
//!    probes is taken.
//! 4. The API server is asked for its version. What may pass by itself (refused or reset connections, time-outs, names
//!    that do not resolve, 429, 5xx) is tried again for a minute (`--startup-timeout`), and said so; what cannot pass
//!    (credentials that are refused, bad TLS) is not.
//! 5. `config-logging`, `config-observability` and `config-leader-election` are read, and followed from then on, if only
//!    to tell of what waits for the next start; the ports of the metrics and of profiling are taken. A
//!    `SYSTEM_NAMESPACE` that does not exist ends the start here; where it holds none of them, and may not be read,
//!    nobody can tell.
//! 6. Informers start, then controllers, each of which waits for its own informers only, electors and tasks.
//!
//! # How it ends
//!
//! On SIGTERM or SIGINT readiness says `shutting down`, controllers take no more keys, and the passes and tasks that
//! run may go on until the deadline (`--shutdown-timeout`). Then leases are released, events that wait are published,
//! the last metrics and spans are sent, and the exit status is 0. A second signal ends the process at once, with 1. A task that fails ends it in the same
//! order, with 1.
//!
//! # Flags
//!
//! | flag | meaning |
//! | --- | --- |
//! | `--kubeconfig`, `--context`, `--cluster`, `--server` | which API server, as whom; its address holds no password |
//! | `--kube-api-qps`, `--kube-api-burst` | the most requests a second, and at once after a pause; no limit unless given |
//! | `--disable-ha` | no leader election: only where no other replica runs |
//! | `--disable-controllers a,b` | controllers that are not to run, by name |
//! | `--bind-address` | what probes, metrics, profiling and each [`ListenAddress`] listen on, all interfaces unless given |
//! | `--startup-timeout`, `--shutdown-timeout` | `60s` and `25s`; keep the second below the pod's grace period |
//!
//! # Environment
//!
//! | variable | meaning |
//! | --- | --- |
//! | `SYSTEM_NAMESPACE` | where leases and ConfigMaps live; without it `--disable-ha` is needed, and no ConfigMap is read |
//! | `POD_NAME`, else `HOSTNAME` | who this is, in the log and in leases |
//! | `K_THREADS_PER_CONTROLLER` | workers of each controller, instead of what its code says |
//! | `KNATIVE_HEALTH_PROBES_PORT` | port of `GET /readiness` and `GET /health`, 8080 |
//! | `METRICS_PROMETHEUS_PORT`, `METRICS_PROMETHEUS_HOST` | where `GET /metrics` is answered, 9090 |
//! | `PROFILING_PORT` | where profiles are served, once they are enabled, 8008 |
//! | `WEBHOOK_PORT`, `WEBHOOK_NAME`, `WEBHOOK_SECRET_NAME` | of a process with a webhook: 8443, its Service `webhook`, its Secret `webhook-certs` |
//! | `KUBERNETES_MIN_VERSION` | the oldest API server to work with, v1.33.0 |
//! | `CONFIG_LOGGING_NAME`, `CONFIG_OBSERVABILITY_NAME`, `CONFIG_LEADERELECTION_NAME` | other names for the ConfigMaps |
//! | `RUST_LOG` | what is logged, instead of what `config-logging` says |
//! | `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY` | the proxy to the API server, where the kubeconfig names none: `http://`, `https://`, or `socks5://` without a password |
//! | `STATEFUL_CONTROLLER_ORDINAL`, `STATEFUL_SERVICE_NAME` | share the work by ordinal rather than by leases |
//!
//! A port that the kubelet sets for a Service of the namespace (`WEBHOOK_PORT=tcp://10.96.0.7:443`) counts as not set.
//!
//! # Threads
//!
//! There is one for each processor that the process may use, which in a container is what its limit allows, and there
//! are two at least. A pass or task that computes or blocks without an `.await` has one of them to itself, and holds up
//! what it has just woken. As many of those at once as there are threads hold up everything else as well: the other
//! passes, leases, probes and the shutdown. What takes long belongs in `tokio::task::spawn_blocking`.
//!
//! # The client
//!
//! Constructors get a client that repeats what a busy API server refused (429, 503; 504 of a GET, which changes nothing)
//! where the answer says by `Retry-After` when to, up to 15 times, as client-go does ten times; anything else fails the
//! pass, which is retried with backoff. It gives up a request after 75 seconds, watches and streams apart: the API server
//! itself ends them after 60, so by then the connection is dead, and what only listens is told so by keepalive within two
//! minutes. What is written is sent at once (`TCP_NODELAY`). Leases are kept through a client of their own, with
//! connections that nobody else uses; each of the two runs a credential plugin for itself, twice at the start.
//!
//! # Metrics
//!
//! | metric | of | meaning |
//! | --- | --- | --- |
//! | `workqueue_depth`, `_adds_total`, `_retries_total`, `_queue_duration_seconds`, `_work_duration_seconds`, `_unfinished_work_seconds`, `_longest_running_processor_seconds` | `name`, a controller | as client-go's |
//! | `reknit_reconcile_total` | `controller`, `result` | passes |
//! | `reknit_reconcile_time_seconds` | `controller` | how long they took |
//! | `reknit_status_writes_total` | `controller`, `result` | requests that write a status |
//! | `reknit_events_dropped_total` | | events that were not published |
//! | `reflector_objects`, `reflector_object_bytes` | `name`, an informer | what it holds, and its size as compact JSON |
//! | `reflector_lists_total`, `_watches_total`, `_events_total`, `_failures_total` | `name`, an informer | lists begun, watches opened, events received, what failed of both |
//! | `leader_election_master_status` | `name`, a lease | 1 where this process leads, as client-go's |
//! | `reknit_webhook_requests_total` | `path`, `code`, `allowed` | requests answered |
//! | `reknit_webhook_request_seconds`, `reknit_webhook_panics_total` | `path` | how long that took; where code of a Kind panicked |
//! | `process_*` | | the process's memory, processor time, files and threads (Linux) |
//!
//! # Observability
//!
//! `config-observability` has Knative's keys. A value that it does not know ends the start with one line.
//!
//! | key | values | changes |
//! | --- | --- | --- |
//! | `metrics-protocol` | `prometheus` (default), `none`, or `grpc` or `http/protobuf`: the same metrics, pushed by OTLP | at the next start |
//! | `metrics-endpoint` | for Prometheus `:port` or `ip:port`, to listen on; else the collector, `http://host:4317` | at the next start |
//! | `metrics-export-interval` | how often they are pushed, `60s` | at the next start |
//! | `metrics-temporality` | `cumulative`: there is no other | |
//! | `tracing-protocol` | `none` (default), `grpc`, `http/protobuf`, `stdout` (OTLP's JSON, a line a batch) | at the next start |
//! | `tracing-endpoint` | the collector | at the next start |
//! | `tracing-sampling-rate` | from 0 (default) to 1: how many of all passes | at the next start |
//! | `runtime-profiling` | `disabled` (default), `enabled` | at once |
//!
//! An endpoint without a scheme is https, with the certificates of the system (`SSL_CERT_FILE`); one without a path has
//! `/v1/metrics` or `/v1/traces`, and none has a user or a password. `OTEL_EXPORTER_OTLP_HEADERS` is sent along, such as
//! `authorization=Bearer%20…`, and `OTEL_RESOURCE_ATTRIBUTES` is added to what says who sends.
//!
//! Each pass is a span `reconcile` with the fields of its log lines (`knative.dev/controller`, `knative.dev/key` and the
//! others), its `result` as `reknit_reconcile_total` counts it, and what was logged in it. The requests to the API
//! server that it made, and spans of your own of level info or above, are its children. Without a protocol no
//! span is made.
//!
//! A collector that cannot be reached is told of once a minute and holds nothing up: metrics are lost until the next
//! time, spans wait for a minute, 2,048 of them at most (`OTEL_BSP_MAX_QUEUE_SIZE`); those beyond are dropped, which
//! nothing tells of. What there is at the end is sent before the deadline of the shutdown, within five seconds, or
//! within one where passes took all the time.
//!
//! While profiling is enabled, `go tool pprof http://POD:8008/debug/pprof/profile?seconds=30` shows where the process
//! spends its time (Linux and macOS; symbols as far as the binary holds them). The first profile needs a directory for
//! temporary files and about 20 MB of memory, which are kept. There are no profiles of the heap: those paths answer 501.
//! While it is disabled, every path answers 404. Without `SYSTEM_NAMESPACE` nothing could enable it, and the port is not
//! taken.
//!
//! # Limitations
//!
//! An exec plugin whose credentials bear no expiry, or are a client certificate, is run at the start only. Files of a
//! kubeconfig with a client certificate or an authority are read at the start only: where they are rotated, the process
//! has to be started anew. A token file is followed.

mod cli;
mod client;
mod config;
mod election;
mod health;
mod observe;
mod process;
mod webhook;

pub use cli::{ListenAddress, Main, NamespaceFlag, main, namespace};
pub use process::Task;
