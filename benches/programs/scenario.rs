//! Runs one scenario once, so that its instructions can be counted: `bench-scenario NAME SIZE`. Only the instructions
//! within `counted` are counted, so the preparation is excluded.

use std::{env, error::Error};

use reknit_benches::{by_name, scenarios::runtime};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, size] = &arguments[..] else { return Err("usage: bench-scenario NAME SIZE".into()) };
    let runtime = runtime()?;
    let _guard = runtime.enter();
    let work = by_name::prepare(name, size.parse()?, &runtime).map_err(|error| error.to_string())?;
    Ok(counted(work).map_err(|error| error.to_string())?)
}

/// Callgrind counts only within this function, which hack/instructions.sh selects by its name.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    let result = work();
    std::hint::black_box(result)
}
