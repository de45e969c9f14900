//! The trackers of one controller.

use std::sync::Arc;

use parking_lot::Mutex;
use reknit_apis::Key;

use super::{
    index::{Index, Tracker},
    used_kinds::UsedKinds,
};

/// All trackers of one controller.
#[derive(Clone, Default)]
pub(crate) struct Trackers {
    /// The trackers of Kinds that are known when the controller is built.
    fixed: Arc<Mutex<Vec<Tracker>>>,
    /// The trackers of Kinds that are found at run time.
    pub(crate) dynamic: UsedKinds,
}

impl Trackers {
    /// Adds the tracker of a Kind that is known when the controller is built.
    pub(crate) fn add(&self) -> Tracker {
        let tracker = Tracker::default();
        self.fixed.lock().push(tracker.clone());
        tracker
    }

    /// Starts a pass of this key.
    pub(crate) fn begin_pass(&self, key: &Key) {
        self.for_each_index(|index| index.begin_pass(key));
    }

    /// Ends a successful pass: drops the reads that it did not repeat.
    pub(crate) fn pass_succeeded(&self, key: &Key) {
        self.for_each_index(|index| index.pass_succeeded(key));
        self.dynamic.close_unused();
    }

    /// Ends a failed pass: drops the reads that neither it nor the last successful pass did. The key may be waiting for any
    /// of the others. So what is kept of a key does not grow with the number of its failed passes.
    pub(crate) fn pass_failed(&self, key: &Key) {
        self.for_each_index(|index| index.pass_failed(key));
        self.dynamic.close_unused();
    }

    /// Drops all reads of this key.
    pub(crate) fn forget(&self, key: &Key) {
        self.for_each_index(|index| index.forget(key));
        self.dynamic.close_unused();
    }

    fn for_each_index(&self, act: impl Fn(&mut Index)) {
        self.fixed.lock().iter().for_each(|tracker| act(&mut tracker.lock()));
        self.dynamic.for_each_index(act);
    }
}
