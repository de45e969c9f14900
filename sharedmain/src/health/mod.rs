//! Readiness and health of a process, and the probes that report them.
pub(crate) mod probes;
pub(crate) mod process_health;
