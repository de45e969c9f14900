//! The state of each bucket as this process knows it, written by electors and read by [`Leadership`].
//!
//! [`Leadership`]: super::Leadership

use std::{mem, sync::Arc};

use tokio::{sync::watch, time::Instant};

/// The leader of a bucket or key at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leader {
    ThisProcess,
    Other,
    /// No leader is known.
    Unknown {
        /// True if this process has led the bucket before.
        this_process_led_before: bool,
    },
}

/// The state of one bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BucketState {
    holder: Holder,
    /// The number of terms in which this process has led the bucket, including its current term, if it leads.
    term: u64,
}

/// The leader as last recorded. Its term may have passed its deadline: [`BucketState::leader`] checks the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Holder {
    #[default]
    Unknown,
    Other,
    /// This process, until this instant. `None`: this process always leads.
    ThisProcess(Option<Instant>),
}

pub(super) type BucketStates = watch::Receiver<Vec<BucketState>>;

impl BucketState {
    /// This process always leads the bucket.
    pub(super) const ALWAYS_LED: Self = Self { holder: Holder::ThisProcess(None), term: 1 };
    pub(super) const LED_BY_OTHER: Self = Self { holder: Holder::Other, term: 0 };

    /// The leader at this moment. Unknown after the deadline of this process's term.
    pub(super) fn leader(&self) -> Leader {
        match (self.current_term(), self.holder) {
            (Some(_), _) => Leader::ThisProcess,
            (None, Holder::Other) => Leader::Other,
            (None, _) => Leader::Unknown { this_process_led_before: self.term > 0 },
        }
    }

    /// The term in which this process leads the bucket, if it does.
    pub(super) fn current_term(&self) -> Option<u64> {
        match self.holder {
            Holder::ThisProcess(until) if until.is_none_or(|until| Instant::now() < until) => Some(self.term),
            _ => None,
        }
    }

    /// The deadline of this process's term, even if it has passed. A renewal moves it. `None` if this process does not
    /// hold the bucket, or always leads it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.holder {
            Holder::ThisProcess(until) => until,
            _ => None,
        }
    }
}

/// Writes the state of one bucket. Owned by the elector of that bucket.
#[derive(Clone, Debug)]
pub(crate) struct BucketWriter {
    index: usize,
    name: Arc<str>,
    states: Arc<watch::Sender<Vec<BucketState>>>,
}

impl BucketWriter {
    /// Creates one writer per bucket and the shared receiver. No bucket has a known leader yet.
    pub(super) fn create_all(names: &[Arc<str>]) -> (BucketStates, Vec<Self>) {
        let (sender, receiver) = watch::channel(vec![BucketState::default(); names.len()]);
        let states = Arc::new(sender);
        let indexed = names.iter().enumerate();
        let writers = indexed.map(|(index, name)| Self { index, name: name.clone(), states: states.clone() });
        (receiver, writers.collect())
    }

    /// The name of the bucket and of its lease.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn leads(&self) -> bool {
        self.states.borrow().get(self.index).is_some_and(|state| state.current_term().is_some())
    }

    /// Records that this process leads until this instant. Returns true if this starts a new term. Readers are notified
    /// of new terms, but not of renewals.
    pub(crate) fn set_leading(&self, until: Instant) -> bool {
        self.modify(|state| {
            let is_new = state.current_term().is_none();
            state.term += u64::from(is_new);
            state.holder = Holder::ThisProcess(Some(until));
            is_new
        })
    }

    /// Records that another process holds the lease. Returns true if the state changed.
    pub(crate) fn set_led_by_other(&self) -> bool {
        self.modify(|state| mem::replace(&mut state.holder, Holder::Other) != Holder::Other)
    }

    /// Records that this process no longer leads, and that the next leader is unknown. Returns true if the state
    /// changed.
    pub(crate) fn set_unknown(&self) -> bool {
        self.stop_leading_if(|_| true)
    }

    /// Ends the term if its deadline has passed. Returns true if the state changed.
    pub(super) fn expire(&self) -> bool {
        self.stop_leading_if(|state| state.current_term().is_none())
    }

    /// Waits until this process leads the bucket, and returns the deadline of the term.
    pub(super) async fn deadline(&self) -> Instant {
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
