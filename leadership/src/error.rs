//! The error of starting leader election.

use super::ConfigError;

/// The reason why a process cannot take part in leader election.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The name of a Lease would be invalid.
    #[error(
        "the lease of queue {queue:?} would have the invalid name {name:?}; rename the controller, or set \
         map-lease-prefix.{component}.{queue}"
    )]
    LeaseName {
        /// The component that takes part in the election.
        component: String,
        /// The queue of the controller.
        queue: String,
        /// The invalid name.
        name: String,
    },
    /// The value of an environment variable is invalid.
    #[error("{name}={value:?}: expected {expected}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A StatefulSet has more replicas than buckets.
    #[error("{name} has ordinal {ordinal}, but there are {buckets} buckets; raise buckets or scale down")]
    Ordinal {
        /// The variable.
        name: &'static str,
        /// The ordinal in it.
        ordinal: u32,
        /// The number of buckets.
        buckets: u32,
    },
    /// The client for leases could not be created.
    #[error("cannot create a client for leases: {0}")]
    Client(#[source] kube::Error),
    /// The metric could not be registered.
    #[error("cannot register the metrics of leader election: {0}")]
    Metrics(#[from] prometheus::Error),
}
