//! The command line and the environment of a process, and the builder of a process.
pub(crate) mod bind_address;
pub(crate) mod environment;
pub(crate) mod flags;
pub(crate) mod listen_address;
pub(crate) mod main;
pub(crate) mod namespace;

pub use self::{
    listen_address::ListenAddress,
    main::Main,
    namespace::{NamespaceFlag, namespace},
};
