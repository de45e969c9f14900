//! reknit and its sample controllers against a real API server.
#![cfg(test)]

#[path = "../support/mod.rs"]
mod support;

mod availability;
mod bad_input;
mod crd;
mod leaders;
mod life_cycle;
mod misbehaving;
mod outage;
mod own_writes;
mod passes;
mod plan;
mod proxy_tests;
mod rbac;
mod scale;
mod scripts;
mod signals;
mod simple_deployment;
mod tutorial;
