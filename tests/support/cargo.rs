//! Running cargo within a test.
#![allow(dead_code, reason = "each test crate that shares this uses a part of it")]

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    process::Command,
};

/// An empty path outside the workspace that is the same in each run, so that cargo finds what it built for a project
/// there in the last run.
pub(crate) fn stable_folder(name: &str) -> PathBuf {
    let mut checkout = DefaultHasher::new();
    env!("CARGO_MANIFEST_DIR").hash(&mut checkout);
    let folder = env::temp_dir().join(format!("reknit-{name}-{:x}", checkout.finish()));
    // A killed run leaves its folder behind.
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// Removes the variables that only tests have and that make cargo build dependencies again, and sets the profile of the
/// tests for development builds.
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
