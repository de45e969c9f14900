//! Runs controllers as a process: flags, signals, logging, leader election, probes, metrics, and the order in which
//! they start and stop.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use reknit_injection::Context;
//! use reknit_reconciler::{Controller, Key, Outcome, ReconcileKey, Result};
//! use reknit_sharedmain as sharedmain;
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
//!     sharedmain::main("controller", &[controller])
//! }
//! ```
//!
//! [`main`] is all that most programs need. [`Main`] adds tasks that run beside the controllers, values for
//! constructors, and flags of the program.
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
//! # Flags
//!
//! | flag | meaning |
//! | --- | --- |
//! | `--kubeconfig`, `--context`, `--cluster`, `--server` | the API server and its credentials; the URL must not contain a password |
//! | `--kube-api-qps`, `--kube-api-burst` | the maximum rate of requests per second, and the burst above it; the default is no limit |
//! | `--disable-ha` | disables leader election; no other replica may run |
//! | `--disable-controllers a,b` | the names of controllers to disable; `webhook` is the webhook with its server |
//! | `--bind-address` | the IP address for probes, metrics, profiling and each [`ListenAddress`]; the default is all interfaces |
//! | `--startup-timeout`, `--shutdown-timeout` | `60s` and `25s`; keep the second below the grace period of the pod |
//!
//! # Environment
//!
//! | variable | meaning |
//! | --- | --- |
//! | `SYSTEM_NAMESPACE` | the namespace of leases and ConfigMaps; without it `--disable-ha` is required, and no ConfigMap is read |
//! | `POD_NAME`, else `HOSTNAME` | the name of this process in the log and in leases |
//! | `K_THREADS_PER_CONTROLLER` | the number of workers of each controller; overrides `.workers(n)` in its code |
//! | `KNATIVE_HEALTH_PROBES_PORT` | the port of `GET /readiness` and `GET /health` (default 8080) |
//! | `METRICS_PROMETHEUS_PORT`, `METRICS_PROMETHEUS_HOST` | the address of `GET /metrics` (default port 9090) |
//! | `PROFILING_PORT` | the port of profiles, if they are enabled (default 8008) |
//! | `WEBHOOK_PORT`, `WEBHOOK_NAME`, `WEBHOOK_SECRET_NAME` | the port (default 8443), Service (default `webhook`) and Secret (default `webhook-certs`) of the webhook |
//! | `ENABLE_WEBHOOKS` | `false` runs the process without its webhook, for example on a laptop, where the API server cannot call it |
//! | `KUBERNETES_MIN_VERSION` | the minimum version of the API server (default v1.33.0) |
//! | `CONFIG_LOGGING_NAME`, `CONFIG_OBSERVABILITY_NAME`, `CONFIG_LEADERELECTION_NAME` | other names for the ConfigMaps |
//! | `RUST_LOG` | the log filter, which overrides `config-logging` |
//! | `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY` | the proxy to the API server if the kubeconfig sets none: `http://`, `https://` or `socks5://` |
//! | `STATEFUL_CONTROLLER_ORDINAL`, `STATEFUL_SERVICE_NAME` | replicas share the keys by ordinal instead of by leases |
//!
//! A port that the kubelet sets for a Service of the namespace (`WEBHOOK_PORT=tcp://10.96.0.7:443`) is ignored.
//!
//! # Threads
//!
//! The runtime has a thread for each processor that the process may use, and at least two. In a container, the CPU
//! limit determines that number. A reconcile or task that computes or blocks without an `.await` occupies one thread,
//! and delays the tasks that it has just woken. If every thread is occupied in this way, everything else stops: other
//! reconciles, leases, probes and the shutdown. Run long computations in `tokio::task::spawn_blocking`.
//!
//! # The client
//!
//! The client of constructors retries requests that an overloaded API server refused with `Retry-After` (429, 503, and
//! 504 for a GET), up to 15 times; client-go retries ten times. Any other error fails the reconcile, which is retried
//! with backoff. Requests other than watches and streams time out after 75 seconds. The API server ends such requests
//! after 60 seconds, so a connection that is silent for 75 seconds is dead. TCP keepalive closes dead connections of
//! watches within two minutes. Small writes are sent at once (`TCP_NODELAY`). Leases have a client with its own
//! connections.
//!
//! An exec credential plugin runs once for each of the two clients, again a minute before its credentials expire, and
//! again after the API server rejected them. A token file is read again every ten seconds.
//!
//! # Logs
//!
//! Each line is a JSON object with the keys of Knative's components: `severity`, `timestamp`, `logger`, `caller`,
//! `message`, and the fields of the event and its spans. A field with the name of one of these keys gets the prefix
//! `fields.`. On a terminal, lines are text.
//!
//! # Metrics
//!
//! | metric | labels | meaning |
//! | --- | --- | --- |
//! | `workqueue_depth`, `_adds_total`, `_retries_total`, `_queue_duration_seconds`, `_work_duration_seconds`, `_unfinished_work_seconds`, `_longest_running_processor_seconds` | `name`, a controller | as in client-go |
//! | `reknit_reconcile_total` | `controller`, `result` | reconciles |
//! | `reknit_reconcile_time_seconds` | `controller` | the duration of reconciles |
//! | `reknit_status_writes_total` | `controller`, `result` | requests that write a status |
//! | `reknit_events_dropped_total` | | events that were not published |
//! | `reflector_objects`, `reflector_object_bytes` | `name`, an informer | the number of cached objects, and their size as compact JSON |
//! | `reflector_lists_total`, `_watches_total`, `_events_total`, `_failures_total` | `name`, an informer | lists and watches started, events received, and lists and watches that failed |
//! | `leader_election_master_status` | `name`, a lease | 1 if this process leads, as in client-go |
//! | `reknit_webhook_requests_total` | `path`, `code`, `allowed` | requests answered |
//! | `reknit_webhook_request_seconds`, `reknit_webhook_panics_total` | `path` | the duration of requests, and panics in the code of a Kind |
//! | `reknit_webhook_handshake_failures_total` | | TLS handshakes with the webhook that failed |
//! | `process_*` | | memory, CPU time, files and threads of the process (Linux) |
//!
//! # Observability
//!
//! `config-observability` has the keys of Knative. An unknown value is an error at the start.
//!
//! | key | values | changes |
//! | --- | --- | --- |
//! | `metrics-protocol` | `prometheus` (default), `none`, or `grpc` or `http/protobuf` to push the same metrics by OTLP | at the next start |
//! | `metrics-endpoint` | for Prometheus `:port` or `ip:port` to listen on, else the collector, such as `http://host:4317` | at the next start |
//! | `metrics-export-interval` | the interval of pushes, `60s` | at the next start |
//! | `metrics-temporality` | only `cumulative` | |
//! | `tracing-protocol` | `none` (default), `grpc`, `http/protobuf`, `stdout` (OTLP's JSON, a line for each batch) | at the next start |
//! | `tracing-endpoint` | the collector | at the next start |
//! | `tracing-sampling-rate` | from 0 (default) to 1: the share of reconciles that are traced | at the next start |
//! | `runtime-profiling` | `disabled` (default), `enabled` | at once |
//!
//! The default scheme of an endpoint is https, with the certificates of the system (`SSL_CERT_FILE`). The default paths
//! are `/v1/metrics` and `/v1/traces`. An endpoint must not contain a user or a password. `OTEL_EXPORTER_OTLP_HEADERS`
//! sets headers of the requests, such as `authorization=Bearer%20…`, and `OTEL_RESOURCE_ATTRIBUTES` adds resource
//! attributes.
//!
//! Each reconcile is a span `reconcile` with the fields of its log lines (`knative.dev/controller`, `knative.dev/key`
//! and others), its log events, and its `result` as in `reknit_reconcile_total`. Its child spans are its requests to
//! the API server, and your own spans of level info or above. With the protocol `none` no spans are made.
//!
//! An unreachable collector is logged once a minute, and delays nothing. Metrics are cumulative, so the next push makes
//! up for a failed one. A batch of spans is retried for a minute. The queue holds 2,048 spans
//! (`OTEL_BSP_MAX_QUEUE_SIZE`); further spans are dropped without a message. At the shutdown, the last metrics and the
//! queued spans are exported. The time limit for this is the time until the deadline, but at least one second and at
//! most five.
//!
//! While profiling is enabled, `go tool pprof http://POD:8008/debug/pprof/profile?seconds=30` takes a CPU profile
//! (Linux and macOS; with the symbols that the binary contains). The first profile needs a directory for temporary
//! files and about 20 MB of memory, which are kept. Heap profiles are not supported: their paths answer 501. While
//! profiling is disabled, every path answers 404. Without `SYSTEM_NAMESPACE` the port is not opened, because no
//! ConfigMap could enable profiling.
//!
//! # Limitations
//!
//! Client certificates and certificate authorities in files of a kubeconfig are read at the start only. Restart the
//! process when they are rotated.

mod cli;
mod client;
mod config;
mod election;
mod health;
mod observe;
mod process;
mod rbac;
mod webhook;

pub use cli::{ListenAddress, Main, NamespaceFlag, main, namespace};
pub use process::Task;
pub use rbac::Rbac;
