//! The life cycle of a process: its construction, start and shutdown.
pub(crate) mod constructors;
pub(crate) mod failure;
mod lifecycle;
pub(crate) mod listen;
pub(crate) mod open_files;
mod panics;
pub(crate) mod program;
mod replica;
mod running;
pub(crate) mod runtimes;
mod self_signed;
mod signals;
pub(crate) mod simulated;
pub(crate) mod startup;
pub(crate) mod task;
pub(crate) mod termination_message;

pub use self::task::Task;
