//! The path of the process's requests to the API server.

mod own_writes;
#[cfg(test)]
mod own_writes_tests;
mod read_back;
mod resource_path;
mod transport;

pub(crate) use self::{
    own_writes::{Answered, read_own_writes},
    transport::{as_kube, collect, decoded, refusal},
};
pub use self::{
    resource_path::ResourcePath,
    transport::{Answer, NoRetry, Transport},
};
