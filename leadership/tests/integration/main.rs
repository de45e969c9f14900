//! Leader election on a real API server.
#![cfg(test)]

mod chaos;
mod overload;
mod process;
mod races;
mod refusals;
mod succession;
