//! Functions that other crates of the framework use. They are not part of the public API.

use reknit_apis::Key;

use crate::{Controller, Outcome, Result, ResultExt, driver::PassMode};
pub use crate::{
    binding::bindable::{bind, changed, subject_of, unbind},
    merge::merge,
};

/// Fails if no object of the controller's Kind can have this key.
pub fn check_key(controller: &Controller, key: &Key) -> Result<()> {
    controller.driver.key_problem(key).map_or(Ok(()), |problem| Err(problem).permanent())
}

/// Removes and returns the queued keys of a controller, sorted.
pub fn take_queued(controller: &Controller) -> Vec<Key> {
    controller.parts.queue.take_all()
}

/// Reconciles a key without the queue, as the leader or not.
pub async fn once(controller: &Controller, key: &Key, leading: bool) -> Result<Outcome> {
    let mode = if leading { PassMode::Leading } else { PassMode::Observing };
    controller.reconcile_once(key, mode).await
}
