//! Test rigs: a scripted API server, and a random model of one.

mod model;
mod scripted;

pub(crate) use scripted::{Asked, Log, Server, Stream, map, server};
