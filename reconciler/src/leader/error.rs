//! What keeps leader election from starting.

use super::ConfigError;

/// Why a process cannot take part in leader election.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Settings that cannot elect a leader.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A Lease cannot have that name.
    #[error(
        "the lease of queue {queue:?} would be named {name:?}, which no object can be; name the controller \
         otherwise, or set map-lease-prefix.{component}.{queue}"
    )]
    LeaseName {
        /// The component that stands for election.
        component: String,
        /// The queue it stands for.
        queue: String,
        /// The name that its lease would have.
        name: String,
    },
    /// An environment variable whose value cannot be used.
    #[error("{name}={value:?}: want {want}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        want: &'static str,
    },
    /// A StatefulSet with more replicas than buckets.
    #[error("{name} has ordinal {ordinal}, but there are {buckets} buckets; raise buckets or scale down")]
    Ordinal {
        /// The variable.
        name: &'static str,
        /// The ordinal in it.
        ordinal: u32,
        /// How many buckets there are.
        buckets: u32,
    },
    /// The client for leases could not be made.
    #[error("cannot make a client for leases: {0}")]
    Client(#[source] kube::Error),
    /// The metric could not be registered.
    #[error("cannot register the metrics of leader election: {0}")]
    Metrics(#[from] prometheus::Error),
}
