//! The ConfigMaps that configure a process: `config-logging`, `config-observability`, `config-leader-election`.
pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod logging;
pub(crate) mod maps;
pub(crate) mod observability;
pub(crate) mod watch;
