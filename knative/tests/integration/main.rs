//! Destinations and bindings on a real API server.
#![cfg(test)]

mod binding;
#[path = "../knative/paint.rs"]
mod paint;
mod resolver;
#[path = "../knative/tone.rs"]
mod tone;
