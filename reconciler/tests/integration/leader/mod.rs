//! Leader election on a real API server.

mod chaos;
mod process;
mod races;
mod refusals;
mod succession;
