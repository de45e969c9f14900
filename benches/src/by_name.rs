//! The scenarios by name.

use std::hint::black_box;

use reknit::prelude::*;
use tokio::runtime::Runtime;

use crate::{
    Server,
    scenarios::{Keys, Lane, Observers, Passes, Stored, find_buckets, turn_condition},
};

/// The part of a scenario that is counted, ready to run.
pub type Work<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// The names of all scenarios.
pub const NAMES: [&str; 8] =
    ["passes", "list", "relist", "queue", "tracker-shared", "tracker-each", "conditions", "buckets"];

/// Prepares the scenario in this size. Call it within the runtime.
///
/// # Errors
///
/// Fails if there is no scenario of this name.
pub fn prepared<'a>(name: &str, size: usize, runtime: &'a Runtime) -> Result<Work<'a>> {
    Ok(match name {
        "passes" => {
            let passes = Passes::of(size);
            Box::new(move || runtime.block_on(passes.run()))
        }
        "list" => {
            let server = Server::holding(size, false);
            done(move || runtime.block_on(Stored::listed_from(server, size)).get_each())
        }
        "relist" => {
            let stored = runtime.block_on(Stored::outdated(size));
            done(move || runtime.block_on(stored.relist()))
        }
        "queue" => done(move || {
            let keys = Keys::default();
            keys.add(size, Lane::Fast);
            keys.add(size, Lane::Slow);
            keys.add(size, Lane::Delayed);
            runtime.block_on(keys.work_off(size));
        }),
        "tracker-shared" | "tracker-each" => {
            let observers = Observers::of(size, name == "tracker-shared")?;
            let changed = observers.changed(1);
            Box::new(move || {
                runtime.block_on(observers.look())?;
                match observers.wake(changed) {
                    woken if woken == size => Ok(()),
                    woken => Err(Error::permanent(format!("{woken} of {size} observers were woken"))),
                }
            })
        }
        "conditions" => done(move || turn_condition(size)),
        "buckets" => done(move || find_buckets(size)),
        other => return Err(Error::permanent(format!("there is no scenario {other}"))),
    })
}

fn done<'a, T>(work: impl FnOnce() -> T + 'a) -> Work<'a> {
    Box::new(|| {
        black_box(work());
        Ok(())
    })
}
