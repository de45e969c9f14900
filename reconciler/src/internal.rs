//! Functions that other crates of the framework use. They are not part of the public API.

use std::{sync::Arc, time::Duration};

use kube::{Resource, api::DynamicObject};
use reknit_apis::{Key, Reference};

use crate::{Controller, Outcome, Result, ResultExt, TrackedAny, driver::PassMode, outcome::Next};
pub use crate::{
    managers::{ManagedMetadata, ManagedObject, is_of_removed_version},
    merge::merge_changes,
    object_client::field_manager,
    owned::APPLIED,
    pass_log::{PassLog, PassRecord, RequestRecord, WaitingPass},
    queue::{KeyState, QueueState},
    stack::{Frame, Stack},
    waits::{ENDLESS, Waits},
};

/// Fails if the key has the wrong form for the controller's Kind: no name, or a namespace where the Kind has none, or
/// the reverse.
pub fn check_key(controller: &Controller, key: &Key) -> Result<()> {
    controller.driver.key_problem(key).map_or(Ok(()), |problem| Err(problem).permanent())
}

/// Returns the objects with the labels of a reference, in all namespaces that the controller selects. The objects in
/// the namespace of the reference have to be listed if it leads to one. Another that cannot be listed has none.
pub async fn selected_in_all_namespaces<O: Resource + Sync>(
    objects: &TrackedAny,
    observer: &O,
    reference: &Reference,
) -> Result<Vec<Arc<DynamicObject>>> {
    objects.in_all_namespaces(observer, reference).await
}

/// Enqueues all keys of a controller.
pub fn enqueue_all(controller: &Controller) {
    controller.driver.keys_to_promote().into_iter().for_each(|key| controller.parts.queue.add_slow(key));
}

/// Enqueues a key of a controller.
pub fn enqueue(controller: &Controller, key: &Key) {
    controller.parts.queue.add(key.clone());
}

/// Removes and returns the queued keys of a controller, sorted.
pub fn take_queued(controller: &Controller) -> Vec<Key> {
    controller.parts.queue.take_all()
}

/// Removes and returns the queued keys of a controller, sorted, with their causes without numbers of passes.
pub fn take_queued_with_causes(controller: &Controller) -> Vec<(Key, String)> {
    let taken = controller.parts.queue.take_all_with_causes().into_iter();
    taken.map(|(key, causes)| (key, format!("{causes:#}"))).collect()
}

/// Runs one pass of a key without the queue. The process counts as the key's leader if `leading`.
pub async fn reconcile_once(controller: &Controller, key: &Key, leading: bool) -> Result<Outcome> {
    let mode = if leading { PassMode::Leading } else { PassMode::Observing };
    controller.reconcile_once(key, mode).await
}

/// Returns the time after which a pass with this outcome wants the next one.
pub fn requeue_after(outcome: &Outcome) -> Option<Duration> {
    match outcome.next() {
        Next::After(wait) => Some(wait),
        Next::Done | Next::Skip => None,
    }
}
