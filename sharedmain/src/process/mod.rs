//! The life of a process: how it is constructed, started and stopped.
pub(crate) mod constructors;
pub(crate) mod failure;
pub(crate) mod lifecycle;
pub(crate) mod listen;
pub(crate) mod panics;
mod running;
mod signals;
pub(crate) mod startup;
mod stop;
mod task;

pub use self::task::Task;
