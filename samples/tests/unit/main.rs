//! Single passes of the sample controllers, and the manifests in `config/`.
#![cfg(test)]

mod addressable_service;
mod config;
mod simple_deployment;
