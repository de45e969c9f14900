//! Test support: an API server that answers as a test scripts it, and a test that compares a cache with a randomly
//! simulated API server.

mod scripted;
mod simulation;

pub(crate) use scripted::{Log, PendingRequest, Server, Stream, map, server};
