//! Tests that start a control plane: its features, and the API server in memory compared with the real one.
#![cfg(test)]

mod cleanup;
mod control_plane;
mod controllers;
mod nodes;
mod same_responses;
