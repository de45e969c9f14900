//! Tests of the webhook without an API server: admission, conversion and the TLS server.
#![cfg(test)]

mod admission;
mod beacon;
mod bulb;
mod config_values;
mod conversion;
mod lamp;
mod lantern;
mod later_defaults;
mod local_server;
mod memory;
mod migration;
mod refusals;
mod server;
