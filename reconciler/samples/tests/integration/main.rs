//! The binaries of the samples against a real API server.
#![cfg(test)]

mod run_local;
mod storage_migration;
mod webhook;
