//! The scenarios by name.

use std::hint::black_box;

use reknit::prelude::*;
use tokio::runtime::Runtime;

use crate::{
    Server,
    scenarios::{CachedServices, Keys, Lane, Observers, Passes, find_buckets, flip_condition},
    server::NAMESPACES,
};

/// The part of a scenario that is counted, ready to run.
pub type Work<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// The names of all scenarios.
pub const NAMES: [&str; 9] = [
    "passes",
    "list",
    "relist",
    "queue",
    "queue-one-namespace",
    "tracker-shared",
    "tracker-each",
    "conditions",
    "buckets",
];

/// Prepares a scenario of this size. The caller has to be within the runtime.
///
/// # Errors
///
/// Fails if there is no scenario of this name.
pub fn prepare<'a>(name: &str, size: usize, runtime: &'a Runtime) -> Result<Work<'a>> {
    Ok(match name {
        "passes" => {
            let passes = Passes::new(size);
            Box::new(move || runtime.block_on(passes.run()))
        }
        "list" => {
            let server = Server::with_objects(size);
            infallible(move || runtime.block_on(CachedServices::list_from(server, size)).get_each())
        }
        "relist" => {
            let services = runtime.block_on(CachedServices::outdated(size));
            infallible(move || runtime.block_on(services.relist()))
        }
        "queue" | "queue-one-namespace" => {
            let namespaces = if name == "queue" { NAMESPACES } else { 1 };
            infallible(move || {
                let keys = Keys::in_namespaces(namespaces);
                keys.add(size, Lane::Fast);
                keys.add(size, Lane::Slow);
                keys.add(size, Lane::Delayed);
                runtime.block_on(keys.reconcile(size));
            })
        }
        "tracker-shared" | "tracker-each" => {
            let observers = Observers::new(size, name == "tracker-shared")?;
            let changed = observers.changed_services();
            Box::new(move || {
                runtime.block_on(observers.reconcile_each())?;
                match observers.update_services(changed) {
                    enqueued if enqueued == size => Ok(()),
                    enqueued => {
                        Err(Error::permanent(format!("{enqueued} of {size} observers were enqueued")))
                    }
                }
            })
        }
        "conditions" => infallible(move || flip_condition(size)),
        "buckets" => infallible(move || find_buckets(size)),
        other => return Err(Error::permanent(format!("there is no scenario {other}"))),
    })
}

/// Wraps work that cannot fail as a [`Work`].
fn infallible<'a, T>(work: impl FnOnce() -> T + 'a) -> Work<'a> {
    Box::new(|| {
        black_box(work());
        Ok(())
    })
}
