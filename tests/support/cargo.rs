//! Helpers for tests that run cargo.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    process::Command,
};

/// Creates an empty folder outside the workspace. Its path is the same in each run, so that cargo reuses what it built for a
/// project there.
pub(crate) fn emptied_folder(name: &str) -> PathBuf {
    let mut checkout = DefaultHasher::new();
    env!("CARGO_MANIFEST_DIR").hash(&mut checkout);
    let folder = cache().join(format!("{name}-{:x}", checkout.finish()));
    // A run that was killed leaves its folder behind.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("cannot create a folder in the cache");
    folder
}

/// A folder of this user. In /tmp another user could create the folder first, since its name is known.
fn cache() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(env::home_dir()?.join(".cache")));
    cache.expect("a home").join("reknit/tests")
}

/// Makes a cargo command reuse the dependencies that were built for the tests: removes the environment variables that
/// cargo or `hack/timed.sh` set for this test, and sets the debug level of the profile `dev` to that of the profile `test`.
/// With another `RUSTC_BOOTSTRAP`, some build scripts run again, and most crates are built again, here and in the next
/// command without it.
pub(crate) fn reuse_build_cache(command: &mut Command) -> &mut Command {
    let is_test_variable = |name: &str| {
        name.starts_with("CARGO_PKG_")
            || name.starts_with("CARGO_MANIFEST_")
            || ["OUT_DIR", "RUSTC_BOOTSTRAP"].contains(&name)
    };
    for (name, _) in env::vars().filter(|(name, _)| is_test_variable(name)) {
        command.env_remove(name);
    }
    command.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
}
