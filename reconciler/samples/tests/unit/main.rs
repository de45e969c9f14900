//! The reconcilers of the samples, pass by pass, and what `config/` deploys.
#![cfg(test)]

mod addressable_service;
mod config;
mod simple_deployment;
