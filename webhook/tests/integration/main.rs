//! The webhook called by a real API server.
#![cfg(test)]

mod api_server;
#[path = "../webhook/beacon.rs"]
mod beacon;
#[path = "../webhook/bulb.rs"]
mod bulb;
mod certificates;
mod clients;
mod conversion;
#[path = "../webhook/lamp.rs"]
mod lamp;
#[path = "../webhook/lantern.rs"]
mod lantern;
#[path = "../webhook/local_server.rs"]
mod local_server;
mod not_found;
mod process;
mod registrations;
mod removed_version;
