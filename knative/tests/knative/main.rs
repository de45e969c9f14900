//! Addresses, bindings and their webhook through the public API, against an in-memory API server.
#![cfg(test)]

mod admission;
mod binding;
mod cluster_scoped_binding;
mod fault_paths;
mod many_bindings;
mod paint;
mod resolver;
mod schema;
mod several_bindings;
mod tone;
