//! Copies the Cargo.lock that reknit is tested with, which new projects get: that of the workspace in a checkout, and
//! in a published package the one that cargo made from it.

use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    let folder = env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let candidates = ["../Cargo.lock", "Cargo.lock"].map(|path| Path::new(&folder).join(path));
    let lock = candidates.iter().find(|path| path.exists());
    let lock =
        lock.ok_or_else(|| io::Error::other("neither the package nor its workspace has a Cargo.lock"))?;
    println!("cargo::rerun-if-changed={}", lock.display());
    let copy = Path::new(&env::var("OUT_DIR").map_err(io::Error::other)?).join("Cargo.lock");
    fs::copy(lock, copy).map(drop)
}
