//! Status and finalizer writes of the framework, whose echo in the watch does not enqueue the key again.
//!
//! `object_client.rs` chooses the writes. `enqueue_own_key` in `controller_builder.rs` passes in the events.

use std::sync::Arc;

use reknit_apis::Key;

use super::Queue;

/// An own write in flight. While it exists, reported changes of its object are recorded and do not enqueue the key.
/// When it is dropped, the key is enqueued if any of these changes is not the echo of the write.
pub(crate) struct OwnWrite {
    queue: Queue,
    key: Arc<Key>,
    /// `None` before the answer and after a failed write; else the resourceVersion in the answer, if it has one.
    answer: Option<Option<String>>,
}

impl Queue {
    /// Runs a status or finalizer write of the framework. The new state does not enqueue the key, whether the answer or
    /// the watch reports it first. `version` returns the resourceVersion in the answer.
    ///
    /// Writes of user code do enqueue the key, since the pass may have computed its status from the state before the
    /// write.
    pub(crate) async fn suppressing_echo<T, E>(
        &self,
        key: Arc<Key>,
        write: impl Future<Output = Result<T, E>>,
        version: impl FnOnce(&T) -> Option<&str>,
    ) -> Result<T, E> {
        let own_write = self.start_own_write(key);
        let answer = write.await;
        if let Ok(answer) = &answer {
            own_write.answered(version(answer));
        }
        answer
    }

    /// Starts a write, which ends when the result is dropped.
    pub(crate) fn start_own_write(&self, key: Arc<Key>) -> OwnWrite {
        self.0.state.lock().pending_writes.push((key.clone(), Vec::new()));
        OwnWrite { queue: self.clone(), key, answer: None }
    }
}

impl OwnWrite {
    /// Ends a successful write, whose answer has this resourceVersion.
    pub(crate) fn answered(mut self, version: Option<&str>) {
        self.answer = Some(version.map(str::to_owned));
    }

    /// Returns true if the reported version, or `None` for a deletion, is not the echo of this write. A failed write
    /// has no echo. After a successful write a deletion counts as its echo, since removing the last finalizer deletes
    /// the object.
    fn is_foreign(&self, reported: &Option<String>) -> bool {
        self.answer.as_ref().is_none_or(|answer| reported.is_some() && reported != answer)
    }
}

impl Drop for OwnWrite {
    fn drop(&mut self) {
        let reported = {
            let writes = &mut self.queue.0.state.lock().pending_writes;
            let index = writes.iter().position(|(key, _)| *key == self.key);
            index.map(|index| writes.swap_remove(index).1).unwrap_or_default()
        };
        if reported.iter().any(|version| self.is_foreign(version)) {
            self.queue.add(Key::clone(&self.key));
        }
    }
}
