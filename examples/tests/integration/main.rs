//! The examples as processes, against a real API server.
#![cfg(test)]

mod cloud_ide;
mod foo;
mod mydemo;
mod place;
#[path = "../support/mod.rs"]
mod support;
mod waitdeployment;
