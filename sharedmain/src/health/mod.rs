//! Readiness and health of a process, and the probes that report them.
pub(crate) mod checks;
pub(crate) mod probes;
pub(crate) mod workers;
