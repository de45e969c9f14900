//! The writes that end a pass: whoever watches the object is told, but for the key whose pass it was.

use std::future::Future;

use reknit_apis::Key;

tokio::task_local! {
    static CONCLUDING: (usize, Key);
}

/// Runs a status or finalizer write of the framework's own, in the pass of this key of that queue.
///
/// What user code writes is no such write: it may have computed its status from what it read before it wrote, so
/// its key runs once more and finds that nothing is left to do.
pub(crate) fn concluding<F: Future>(queue: usize, key: Key, write: F) -> impl Future<Output = F::Output> {
    CONCLUDING.scope((queue, key), write)
}

/// Whether the caller runs inside such a write.
pub(crate) fn concludes(queue: usize, key: &Key) -> bool {
    CONCLUDING.try_with(|(its_queue, its_key)| *its_queue == queue && its_key == key).unwrap_or(false)
}
