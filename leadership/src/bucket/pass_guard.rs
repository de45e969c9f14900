//! The count of the running passes of a bucket.

use super::state::{BucketStates, Leader};

/// Counts a running pass of a bucket's key until it is dropped.
#[derive(Debug)]
pub struct PassGuard(Option<(BucketStates, usize)>);

impl PassGuard {
    /// Counts a pass of a key that is not in a bucket.
    pub(crate) fn uncounted() -> Self {
        Self(None)
    }

    /// Counts a pass of a key in the bucket with this index. Returns `None` if the pass must not start: this process
    /// does not lead the bucket, or hands it over.
    pub(crate) fn start(states: &BucketStates, index: usize) -> Option<Self> {
        let mut started = false;
        states.send_if_modified(|states| {
            if let Some(state) = states.get_mut(index).filter(|state| state.leader() == Leader::ThisProcess) {
                state.passes += 1;
                started = true;
            }
            false
        });
        started.then(|| Self(Some((states.clone(), index))))
    }
}

impl Drop for PassGuard {
    fn drop(&mut self) {
        let Some((states, index)) = &self.0 else { return };
        states.send_if_modified(|states| {
            let Some(state) = states.get_mut(*index) else { return false };
            state.passes = state.passes.saturating_sub(1);
            state.passes == 0 && state.is_draining
        });
    }
}
