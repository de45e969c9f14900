//! Tests that compile projects and run them against a real API server.
#![cfg(test)]

#[path = "../../../tests/support/cargo.rs"]
mod cargo;
mod deployed;
mod dev;
mod life_of_a_project;
mod project;
