//! The examples as their users meet them: real processes, a real API server.
#![cfg(test)]

mod crds;
mod mydemo;
mod support;
