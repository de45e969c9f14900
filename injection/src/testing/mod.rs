//! Test support: a scripted API server, and a random simulation of one.

mod model;
mod scripted;

pub(crate) use scripted::{Log, PendingRequest, Server, Stream, map, server};
