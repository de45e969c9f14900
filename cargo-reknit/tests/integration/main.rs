//! Tests that compile projects and run them against a real API server.
#![cfg(test)]

mod deployed;
mod dev;
mod life_of_a_project;
mod project;
