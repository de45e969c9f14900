//! Tests of the examples as processes, with a real API server.
#![cfg(test)]

mod cloud_ide;
mod cronjob;
mod definitions;
mod environment;
mod eventing;
mod foo;
mod ingress;
mod mydemo;
mod plan;
mod sequence;
#[path = "../support/mod.rs"]
mod support;
mod waitdeployment;
