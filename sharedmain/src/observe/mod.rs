//! Logs, metrics, traces and profiles of a process.
pub(crate) mod access;
pub(crate) mod log_line;
pub(crate) mod logging;
pub(crate) mod metrics;
#[cfg(feature = "otlp")]
pub(crate) mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "without_otlp.rs"]
pub(crate) mod otlp;
pub(crate) mod passes;
pub(crate) mod profiling;
