//! Runs one scenario once, so that its instructions can be counted: `bench-scenario NAME SIZE`. What is counted is what
//! happens within `counted`, without the making of what it works on.

use std::{env, error::Error};

use reknit_benches::{
    Server,
    scenarios::{Keys, Lane, Observers, Passes, Stored, find_buckets, runtime, turn_condition},
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, size] = &arguments[..] else { return Err("bench-scenario NAME SIZE".into()) };
    let size: usize = size.parse()?;
    let runtime = runtime()?;
    let _within = runtime.enter();
    match name.as_str() {
        "passes" => {
            let passes = Passes::of(size);
            counted(|| runtime.block_on(passes.run())).map_err(|error| error.to_string())?;
        }
        "list" => {
            let server = Server::holding(size, false);
            counted(|| runtime.block_on(Stored::listed_from(server, size)).get_each());
        }
        "relist" => {
            let stored = runtime.block_on(Stored::outdated(size));
            counted(|| runtime.block_on(stored.relist()));
        }
        "queue" => counted(|| {
            let keys = Keys::default();
            keys.add(size, Lane::Fast);
            keys.add(size, Lane::Slow);
            keys.add(size, Lane::Delayed);
            runtime.block_on(keys.work_off(size));
        }),
        "tracker-shared" | "tracker-each" => {
            let observers =
                Observers::of(size, name == "tracker-shared").map_err(|error| error.to_string())?;
            let woken = counted(|| runtime.block_on(observers.look()).map(|()| observers.change(1)));
            let woken = woken.map_err(|error| error.to_string())?;
            assert_eq!(woken, size, "not every observer was woken");
        }
        "conditions" => {
            counted(|| turn_condition(size));
        }
        "buckets" => {
            counted(|| find_buckets(size));
        }
        other => return Err(format!("there is no scenario {other}").into()),
    }
    Ok(())
}

/// Callgrind is told to count within this function.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    let made = work();
    std::hint::black_box(made)
}
