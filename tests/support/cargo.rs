//! Running cargo within a test.
#![allow(dead_code, reason = "each test crate that shares this uses a part of it")]

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    process::Command,
};

/// A path outside the workspace, with nothing there, that is the same in each run: cargo then finds what it built for a
/// project there the last time.
pub(crate) fn stable_folder(name: &str) -> PathBuf {
    let mut checkout = DefaultHasher::new();
    env!("CARGO_MANIFEST_DIR").hash(&mut checkout);
    let folder = env::temp_dir().join(format!("reknit-{name}-{:x}", checkout.finish()));
    // Left by a run that was killed.
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// Removes the variables that are set for tests alone and that would make cargo build dependencies again, and has it
/// build for development as for tests.
pub(crate) fn without_test_variables(command: &mut Command) -> &mut Command {
    let is_of_tests = |name: &str| {
        name.starts_with("CARGO_PKG_")
            || name.starts_with("CARGO_MANIFEST_")
            || ["OUT_DIR", "RUSTC_BOOTSTRAP"].contains(&name)
    };
    for (name, _) in env::vars().filter(|(name, _)| is_of_tests(name)) {
        command.env_remove(name);
    }
    command.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
}
