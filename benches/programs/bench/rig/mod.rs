//! The API server, the machine and the programs under measurement.

pub(crate) mod candidate;
pub(crate) mod cluster;
pub(crate) mod cpu;
pub(crate) mod machine;
pub(crate) mod page;
pub(crate) mod process;
pub(crate) mod watch;
