//! Writes the state of one bucket.

use std::{mem, sync::Arc};

use tokio::{sync::watch, time::Instant};

use super::state::{BucketState, BucketStates, Holder};

/// Writes the state of one bucket. Owned by the elector of that bucket.
#[derive(Clone, Debug)]
pub struct BucketWriter {
    index: usize,
    name: Arc<str>,
    states: BucketStates,
}

impl BucketWriter {
    /// Creates one writer per bucket, and the shared states. No bucket has a known leader yet.
    pub(crate) fn create_all(names: &[Arc<str>]) -> (BucketStates, Vec<Self>) {
        let states = Arc::new(watch::Sender::new(vec![BucketState::default(); names.len()]));
        let indexed = names.iter().enumerate();
        let writers = indexed.map(|(index, name)| Self { index, name: name.clone(), states: states.clone() });
        (states.clone(), writers.collect())
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The states of all buckets of the controller.
    pub(crate) fn states(&self) -> Vec<BucketState> {
        self.states.borrow().clone()
    }

    /// Returns, by index, whether this process leads each bucket of the controller.
    pub(crate) fn led_buckets(&self) -> Vec<bool> {
        self.states.borrow().iter().map(|state| state.current_term().is_some()).collect()
    }

    /// The name of the bucket and of its lease.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn leads(&self) -> bool {
        self.states.borrow().get(self.index).is_some_and(|state| state.current_term().is_some())
    }

    /// Records that this process leads until this instant. Returns true if this starts a new term. Readers are notified
    /// of new terms, but not of renewals.
    pub fn set_leading(&self, until: Instant) -> bool {
        self.modify(|state| {
            let is_new = state.current_term().is_none();
            state.term += u64::from(is_new);
            state.is_draining &= !is_new;
            state.holder = Holder::ThisProcess(Some(until));
            is_new
        })
    }

    /// Prevents new passes of the bucket's keys in this term.
    pub(crate) fn start_draining(&self) {
        self.modify(|state| !mem::replace(&mut state.is_draining, true));
    }

    /// Waits until no pass of the bucket's keys runs.
    pub(crate) async fn drained(&self) {
        let mut states = self.states.subscribe();
        let is_drained =
            |states: &Vec<BucketState>| states.get(self.index).is_none_or(|state| state.passes == 0);
        states.wait_for(is_drained).await.ok();
    }

    /// Records that another process holds the lease.
    pub fn set_led_by_other(&self) {
        self.replace_by_other();
    }

    /// Records that another process holds the lease. Returns the holder before, if the state changed.
    pub(crate) fn replace_by_other(&self) -> Option<Holder> {
        let mut before = None;
        self.modify(|state| {
            before = Some(mem::replace(&mut state.holder, Holder::Other))
                .filter(|holder| *holder != Holder::Other);
            before.is_some()
        });
        before
    }

    /// Records that this process no longer leads, and that the next leader is unknown. Returns true if the state
    /// changed.
    pub fn set_unknown(&self) -> bool {
        self.stop_leading_if(|_| true)
    }

    /// Ends the term if its deadline has passed. Returns true if the state changed.
    pub(crate) fn expire(&self) -> bool {
        self.stop_leading_if(|state| state.current_term().is_none())
    }

    /// Waits until this process leads the bucket, and returns the deadline of the term.
    pub(crate) async fn deadline(&self) -> Instant {
        let mut states = self.states.subscribe();
        loop {
            let deadline = states.borrow_and_update().get(self.index).and_then(BucketState::deadline);
            if let Some(deadline) = deadline {
                return deadline;
            }
            if states.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn stop_leading_if(&self, condition: impl FnOnce(&BucketState) -> bool) -> bool {
        self.modify(|state| {
            let ends = matches!(state.holder, Holder::ThisProcess(_)) && condition(state);
            if ends {
                state.holder = Holder::Unknown;
            }
            ends
        })
    }

    fn modify(&self, change: impl FnOnce(&mut BucketState) -> bool) -> bool {
        self.states.send_if_modified(|states| states.get_mut(self.index).is_some_and(change))
    }
}
