//! The webhook without an API server: its answers, and what it serves over HTTP.
#![cfg(test)]

mod cases;
mod lamp;
mod memory;
mod migration;
mod served;
mod serving;
