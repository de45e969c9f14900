//! The writes that end a pass: whoever watches the object is told, but for the key whose pass it was.

use std::{future::Future, sync::Arc};

use reknit_apis::Key;

use crate::Queue;

tokio::task_local! {
    static CONCLUDING: (usize, Arc<Key>);
}

/// Runs a status or finalizer write of the framework's own, in the pass of this key of that queue. `version` finds the
/// resourceVersion in the answer: the watch may tell of it before the answer is there, and that wakes nobody either.
///
/// What user code writes is no such write: it may have computed its status from what it read before it wrote, so
/// its key runs once more and finds that nothing is left to do.
pub(crate) async fn concluding<T, E>(
    queue: &Queue,
    key: Arc<Key>,
    write: impl Future<Output = Result<T, E>>,
    version: impl FnOnce(&T) -> Option<&str>,
) -> Result<T, E> {
    let writing = queue.writing(key.clone());
    let answer = CONCLUDING.scope((queue.id(), key), write).await;
    if let Ok(answer) = &answer {
        writing.answered(version(answer));
    }
    answer
}

/// Whether the caller runs inside such a write.
pub(crate) fn concludes(queue: usize, key: &Key) -> bool {
    CONCLUDING.try_with(|(its_queue, its_key)| *its_queue == queue && **its_key == *key).unwrap_or(false)
}
