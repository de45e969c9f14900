//! Tests of the webhook without an API server: admission, conversion and the TLS server.
#![cfg(test)]

mod admission;
mod binding;
mod bulb;
mod config_values;
mod conversion;
mod fault_paths;
mod lamp;
mod local_server;
mod memory;
mod migration;
mod paint;
mod refusals;
mod server;
