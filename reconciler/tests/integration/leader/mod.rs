//! Leader election on a real API server: who leads, who takes over and when, and that two never lead at once.

mod chaos;
mod process;
mod races;
mod refusals;
mod succession;
