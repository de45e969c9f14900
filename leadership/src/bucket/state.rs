//! The state of each bucket as this process knows it, written by electors and read by
//! [`Leadership`](crate::Leadership).

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};

/// The leader of a bucket or key at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// This process leads.
    ThisProcess,
    /// Another process leads, or this process hands the bucket over.
    Other,
    /// No leader is known.
    Unknown {
        /// True if this process has led the bucket before.
        this_process_led_before: bool,
    },
}

/// The state of one bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BucketState {
    pub(super) holder: Holder,
    /// The number of terms in which this process has led the bucket, including its current term, if it leads.
    pub(super) term: u64,
    /// True while the bucket is being handed over: running passes end, and no new one starts.
    pub(super) is_draining: bool,
    /// The number of running passes of the bucket's keys.
    pub(super) passes: usize,
}

/// The leader as last recorded. Its term may have passed its deadline: [`BucketState::leader`] checks the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holder {
    #[default]
    Unknown,
    Other,
    /// This process, until this instant. `None`: this process always leads.
    ThisProcess(Option<Instant>),
}

/// The states of the buckets of one controller, by index.
pub(crate) type BucketStates = Arc<watch::Sender<Vec<BucketState>>>;

impl BucketState {
    /// This process always leads the bucket.
    pub(crate) const ALWAYS_LED: Self =
        Self { holder: Holder::ThisProcess(None), term: 1, is_draining: false, passes: 0 };
    pub(crate) const LED_BY_OTHER: Self =
        Self { holder: Holder::Other, term: 0, is_draining: false, passes: 0 };

    /// The leader at this moment; unknown after the deadline of this process's term. A bucket that this process hands
    /// over counts as led by another process, since the next leader will reconcile all of its keys.
    pub(crate) fn leader(&self) -> Leader {
        match (self.current_term(), self.holder) {
            (Some(_), _) if self.is_draining => Leader::Other,
            (Some(_), _) => Leader::ThisProcess,
            (None, Holder::Other) => Leader::Other,
            (None, _) => Leader::Unknown { this_process_led_before: self.term > 0 },
        }
    }

    /// The term in which this process leads the bucket, if it does. The term goes on while the bucket is handed over.
    pub(crate) fn current_term(&self) -> Option<u64> {
        match self.holder {
            Holder::ThisProcess(until) if until.is_none_or(|until| Instant::now() < until) => Some(self.term),
            _ => None,
        }
    }

    /// The deadline of this process's term, even if it has passed. A renewal moves it. `None` if this process does not
    /// hold the bucket, or always leads it.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.holder {
            Holder::ThisProcess(until) => until,
            _ => None,
        }
    }
}
