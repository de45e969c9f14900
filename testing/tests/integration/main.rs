//! Tests that start a control plane.
#![cfg(test)]

mod cleanup;
mod control_plane;
mod controllers;
mod definitions;
mod nodes;
