//! The measurements, one per file.

pub(crate) mod idle;
pub(crate) mod latency;
pub(crate) mod listing;
pub(crate) mod memory;
pub(crate) mod throughput;
