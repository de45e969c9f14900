//! Shared code of the integration tests: the API server and a proxy in front of it, controllers as processes, and
//! clients for the objects of the samples.

pub(crate) mod cargo;
pub(crate) mod link;
pub(crate) mod logs;
pub(crate) mod loose_kind;
pub(crate) mod objects;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod server;
pub(crate) mod simple_deployments;
pub(crate) mod wait;
pub(crate) mod watch_recorder;
