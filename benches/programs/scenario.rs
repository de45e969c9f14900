//! Runs one scenario once, so that its instructions can be counted: `bench-scenario NAME SIZE`. The instructions within
//! `counted` count, and the preparation does not.

use std::{env, error::Error};

use reknit_benches::{by_name, scenarios::runtime};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, size] = &arguments[..] else { return Err("bench-scenario NAME SIZE".into()) };
    let runtime = runtime()?;
    let _within = runtime.enter();
    let work = by_name::prepared(name, size.parse()?, &runtime).map_err(|error| error.to_string())?;
    Ok(counted(work).map_err(|error| error.to_string())?)
}

/// Callgrind counts within this function.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    let made = work();
    std::hint::black_box(made)
}
