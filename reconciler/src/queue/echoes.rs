//! The writes under way that end passes, and what the watch tells of their objects meanwhile.

use std::sync::Arc;

use reknit_apis::Key;

use super::Queue;

/// For each write under way, what was told of its object since it began. As many as there are workers.
#[derive(Debug, Default)]
pub(super) struct Echoes(Vec<Echo>);

#[derive(Debug)]
struct Echo {
    key: Arc<Key>,
    /// The versions told; none for a deletion.
    told: Vec<Option<String>>,
}

impl Echoes {
    fn begin(&mut self, key: Arc<Key>) {
        self.0.push(Echo { key, told: Vec::new() });
    }

    /// Notes what was told of an object that is being written to. False where it is not.
    pub(super) fn note(&mut self, key: &Key, version: Option<&str>) -> bool {
        let Some(echo) = self.0.iter_mut().find(|echo| *echo.key == *key) else { return false };
        echo.told.push(version.map(str::to_owned));
        true
    }

    fn end(&mut self, key: &Key) -> Vec<Option<String>> {
        let at = self.0.iter().position(|echo| *echo.key == *key);
        at.map(|at| self.0.swap_remove(at).told).unwrap_or_default()
    }
}

/// A write under way. What was told of its object meanwhile wakes the key when this is dropped, but for the echo of
/// the write itself.
pub(crate) struct Writing {
    queue: Queue,
    key: Arc<Key>,
    /// What the answer said, once there was one.
    answer: Option<Option<String>>,
}

impl Queue {
    /// Runs a status or finalizer write of the framework's own that ends the pass of this key: it does not wake the key,
    /// whether the answer or the watch tells of it first. `version` finds the resourceVersion in the answer.
    ///
    /// What user code writes is no such write: it may have computed its status from what it read before it wrote, so its
    /// key runs once more and finds that nothing is left to do.
    pub(crate) async fn concluding<T, E>(
        &self,
        key: Arc<Key>,
        write: impl Future<Output = Result<T, E>>,
        version: impl FnOnce(&T) -> Option<&str>,
    ) -> Result<T, E> {
        let writing = self.writing(key);
        let answer = write.await;
        if let Ok(answer) = &answer {
            writing.answered(version(answer));
        }
        answer
    }

    /// Begins a write that ends the pass of this key.
    pub(crate) fn writing(&self, key: Arc<Key>) -> Writing {
        self.0.state.lock().echoes.begin(key.clone());
        Writing { queue: self.clone(), key, answer: None }
    }
}

impl Writing {
    /// The object had this version after the write. That it is gone now, as without its last finalizer, is no news to
    /// a pass that ends.
    pub(crate) fn answered(mut self, version: Option<&str>) {
        self.answer = Some(version.map(str::to_owned));
    }

    fn is_news(&self, told: &Option<String>) -> bool {
        self.answer.as_ref().is_none_or(|answer| told.is_some() && told != answer)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let told = self.queue.0.state.lock().echoes.end(&self.key);
        if told.iter().any(|told| self.is_news(told)) {
            self.queue.add(Key::clone(&self.key));
        }
    }
}
