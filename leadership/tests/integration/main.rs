//! Leader election on a real API server.
#![cfg(test)]

mod chaos;
mod process;
mod races;
mod refusals;
mod succession;
