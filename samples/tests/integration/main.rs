//! The binaries of the samples against a real API server.
#![cfg(test)]

#[path = "../../../tests/support/cargo.rs"]
mod cargo;
mod load;
mod manifests;
mod metrics;
mod policy;
mod prometheus;
mod rights;
mod run_local;
mod shadow;
mod storage_migration;
mod webhook;
