//! Running cargo within a test.

use std::process::Command;

/// Removes the variables that are set for tests alone and that would make cargo build dependencies again, and has it
/// build for development as for tests.
pub(crate) fn without_test_variables(command: &mut Command) -> &mut Command {
    let is_of_tests = |name: &str| {
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "RUSTC_BOOTSTRAP"
    };
    for (name, _) in std::env::vars().filter(|(name, _)| is_of_tests(name)) {
        command.env_remove(name);
    }
    command.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
}
