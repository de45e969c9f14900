//! The life of a process: how it is constructed, started and stopped.
pub(crate) mod constructors;
pub(crate) mod failure;
mod lifecycle;
pub(crate) mod listen;
mod panics;
pub(crate) mod program;
mod running;
mod signals;
pub(crate) mod startup;
mod task;

pub use self::task::Task;
