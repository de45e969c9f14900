//! Shared code of the integration tests: a proxy in front of the API server, processes, objects, and controllers in
//! process.

pub(crate) mod cargo;
pub(crate) mod in_process;
pub(crate) mod logs;
pub(crate) mod loose;
pub(crate) mod objects;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod replicas;
pub(crate) mod server;
pub(crate) mod tally;
pub(crate) mod wait;
