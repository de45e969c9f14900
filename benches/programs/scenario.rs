//! Runs one scenario once, so that its instructions can be counted: `bench-scenario NAME SIZE`. Only the function
//! `counted` is counted, not the preparation.

use std::{env, error::Error};

use reknit_benches::{by_name, scenarios::build_runtime};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, size] = &arguments[..] else { return Err("usage: bench-scenario NAME SIZE".into()) };
    let runtime = build_runtime()?;
    let _entered = runtime.enter();
    let work = by_name::prepare(name, size.parse()?, &runtime).map_err(|error| error.to_string())?;
    Ok(counted(work).map_err(|error| error.to_string())?)
}

/// Callgrind counts only within this function, which hack/instructions.sh selects by its name.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    let result = work();
    std::hint::black_box(result)
}
