//! The history of changes, which watches report.

use std::{collections::VecDeque, sync::Arc, task::Waker};

use serde_json::Value;

/// The number of changes that are kept. Older ones are compacted away.
const MAX_CHANGES: usize = 10_000;

/// The resourceVersions of changes start above this number, so that they are higher than the versions of objects that a
/// test adds.
const BASE_VERSION: u64 = 1000;

pub(crate) struct History {
    changes: VecDeque<Change>,
    /// The resourceVersion of the latest change.
    latest: u64,
    /// The resourceVersion of the latest change that was compacted away.
    compacted: u64,
    /// The number of times that all watches were ended.
    restarts: u64,
    /// The tasks that wait for the next change.
    wakers: Vec<Waker>,
}

/// A change of one object.
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) key: String,
    /// `None` if the object was created.
    pub(crate) before: Option<Arc<Value>>,
    /// `None` if the object was removed.
    pub(crate) after: Option<Arc<Value>>,
}

impl Default for History {
    fn default() -> Self {
        let changes = VecDeque::new();
        Self { changes, latest: BASE_VERSION, compacted: 0, restarts: 0, wakers: Vec::new() }
    }
}

impl History {
    pub(crate) fn latest(&self) -> u64 {
        self.latest
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Makes the next change have a higher resourceVersion than this one.
    pub(crate) fn raise(&mut self, version: u64) {
        self.latest = self.latest.max(version);
    }

    /// Records a change under the next resourceVersion.
    pub(crate) fn record(&mut self, key: String, before: Option<Arc<Value>>, after: Option<Arc<Value>>) {
        self.latest += 1;
        self.changes.push_back(Change { version: self.latest, key, before, after });
        if self.changes.len() > MAX_CHANGES
            && let Some(oldest) = self.changes.pop_front()
        {
            self.compacted = oldest.version;
        }
        self.wake();
    }

    /// The changes after this resourceVersion. `None` if some of them were compacted away.
    pub(crate) fn since(&self, version: u64) -> Option<impl DoubleEndedIterator<Item = &Change>> {
        let start = self.changes.partition_point(|change| change.version <= version);
        (version >= self.compacted).then(|| self.changes.range(start..))
    }

    /// Forgets all changes so far.
    pub(crate) fn compact(&mut self) {
        self.changes.clear();
        self.compacted = self.latest;
    }

    /// Ends all watches that are open.
    pub(crate) fn restart(&mut self) {
        self.restarts += 1;
        self.wake();
    }

    /// Wakes the task at the next change.
    pub(crate) fn wait(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}
