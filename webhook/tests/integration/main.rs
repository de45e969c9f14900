//! The webhook called by a real API server.
#![cfg(test)]

mod api_server;
mod conversion;
#[path = "../webhook/lamp.rs"]
mod lamp;
#[path = "../webhook/memory.rs"]
mod memory;
mod process;
#[path = "../webhook/served.rs"]
mod served;
