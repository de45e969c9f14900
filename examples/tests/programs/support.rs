//! What the tests of the examples share.

#[path = "../../../tests/support/process.rs"]
pub(crate) mod process;
#[path = "../../../tests/support/wait.rs"]
pub(crate) mod wait;

use std::path::PathBuf;

/// A file in the folder of an example.
pub(crate) fn file(example: &str, name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), example, name].iter().collect()
}
