//! Single passes of the examples' reconcilers, and their definitions.
#![cfg(test)]

mod crds;
mod foo;
mod mydemo;
#[path = "../support/mod.rs"]
mod support;
mod waitdeployment;
