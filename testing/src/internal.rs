//! Items for the other crates of reknit. They are not part of the public API, and may change in any release.

#[cfg(unix)]
pub use crate::watchdog::Watchdog;
