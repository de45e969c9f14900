//! The path of the process's requests to the API server.

mod answered;
mod no_retry;
mod own_writes;
#[cfg(test)]
mod own_writes_tests;
mod read_back;
mod resource_path;
mod transport;

pub(crate) use self::{
    answered::Answered,
    own_writes::read_own_writes,
    transport::{as_kube, collect, refusal},
};
pub use self::{
    no_retry::NotRepeated,
    resource_path::ResourcePath,
    transport::{Answer, Transport},
};
