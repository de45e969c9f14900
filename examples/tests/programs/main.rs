//! The examples as their users meet them: real processes, a real API server.
#![cfg(test)]

mod cloud_ide;
mod crds;
mod foo;
mod mydemo;
mod place;
mod support;
mod waitdeployment;
