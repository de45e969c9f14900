//! The error of starting leader election.

use crate::config::ConfigError;

/// The reason why a process cannot take part in leader election.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The name of a Lease, an environment variable or an ordinal is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The client for leases could not be created.
    #[error("cannot create a client for leases: {0}")]
    Client(#[source] kube::Error),
    /// The metrics could not be registered.
    #[error("cannot register the metrics of leader election: {0}")]
    Metrics(#[from] prometheus::Error),
}
