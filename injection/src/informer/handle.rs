//! An informer without its type, and its progress.

use std::time::Instant;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

/// An informer without its type. A controller keeps one for each informer that it needs, which keeps the informer
/// running.
pub trait InformerHandle: Send + Sync {
    /// Returns the resource and the selection, such as `pods` or `addressableservices.samples.knative.dev [namespace=shop]`.
    fn name(&self) -> &str;

    /// Returns the progress of the informer.
    fn state(&self) -> InformerState;

    /// Completes once the first list is in the cache, or at once if it already is.
    fn synced(&self) -> BoxFuture<'static, ()>;
}

/// The progress of an informer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InformerState {
    /// The informer is not started.
    NotStarted,
    /// The first list is not complete, or the API server does not know the resource any more. In the second case the
    /// objects stay cached.
    Waiting {
        /// The time at which it was started, or found the resource unknown.
        since: Instant,
        /// The reason, such as "the API server does not know addressableservices…". Empty while nothing has failed.
        why: String,
    },
    /// The list is in the cache.
    Synced {
        /// The time of the last response or failed request. It also advances while the API server is unreachable. If it
        /// does not advance, the informer is stuck.
        last_attempt: Instant,
    },
}

/// The state of an informer, and a channel on which to wait for its sync.
pub(crate) struct Progress {
    state: Mutex<InformerState>,
    synced: watch::Sender<bool>,
}

/// The time by tokio's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Progress {
    pub(crate) fn not_started() -> Self {
        Self { state: Mutex::new(InformerState::NotStarted), synced: watch::Sender::new(false) }
    }

    pub(crate) fn state(&self) -> InformerState {
        self.state.lock().clone()
    }

    pub(crate) fn mark_started(&self) {
        *self.state.lock() = InformerState::Waiting { since: now(), why: String::new() };
    }

    pub(crate) fn mark_attempt(&self) {
        if let InformerState::Synced { last_attempt } = &mut *self.state.lock() {
            *last_attempt = now();
        }
    }

    /// Records why the informer waits. A synced informer stays synced.
    pub(crate) fn mark_failed(&self, reason: &str) {
        if let InformerState::Waiting { why, .. } = &mut *self.state.lock() {
            reason.clone_into(why);
        }
    }

    /// Waits again, since the API server does not know the resource any more.
    pub(crate) fn mark_not_served(&self, reason: &str) {
        let mut state = self.state.lock();
        if let InformerState::Synced { .. } = &*state {
            *state = InformerState::Waiting { since: now(), why: reason.into() };
            self.synced.send_replace(false);
        }
    }

    pub(crate) fn mark_synced(&self) {
        *self.state.lock() = InformerState::Synced { last_attempt: now() };
        self.synced.send_replace(true);
    }

    pub(crate) fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }
}
