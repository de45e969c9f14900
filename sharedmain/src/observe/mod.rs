//! Logs, metrics, traces and profiles of a process.
mod log_line;
pub(crate) mod logging;
pub(crate) mod metrics;
pub(crate) mod otlp;
pub(crate) mod profiling;
pub(crate) mod traces;
