//! How far an informer has come, for whoever keeps it without knowing what it holds.

use std::time::Instant;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

/// An informer, whatever its Kind: what a controller keeps of each informer that it needs. It keeps the informer
/// alive.
pub trait Feed: Send + Sync {
    /// The resource and the selection, as in `pods` or `addressableservices.samples.knative.dev [namespace=shop]`.
    fn name(&self) -> &str;

    /// How far it has come.
    fn state(&self) -> FeedState;

    /// Ends once the informer holds everything that its first list told; at once if it does already.
    fn synced(&self) -> BoxFuture<'static, ()>;
}

/// How far an informer has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedState {
    /// Nobody has started it yet.
    NotStarted,
    /// It has not read its first list to the end, or it waits again, since the API server does not know the resource
    /// any more. Then it holds what it held.
    Waiting {
        /// When it was started, or found the resource unknown.
        since: Instant,
        /// What stands in the way, as in "the API server does not know addressableservices…"; empty while nothing
        /// has failed.
        why: String,
    },
    /// It holds what it is to hold.
    Synced {
        /// When it was last seen at work: it heard from the API server, or failed to and is to try again. It goes on
        /// while the API server is away, and an informer for which it does not is stuck.
        last_attempt: Instant,
    },
}

pub(crate) struct Progress {
    state: Mutex<FeedState>,
    synced: watch::Sender<bool>,
}

/// Of tokio's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Progress {
    pub(crate) fn not_started() -> Self {
        Self { state: Mutex::new(FeedState::NotStarted), synced: watch::Sender::new(false) }
    }

    pub(crate) fn state(&self) -> FeedState {
        self.state.lock().clone()
    }

    pub(crate) fn started(&self) {
        *self.state.lock() = FeedState::Waiting { since: now(), why: String::new() };
    }

    pub(crate) fn attempted(&self) {
        if let FeedState::Synced { last_attempt } = &mut *self.state.lock() {
            *last_attempt = now();
        }
    }

    pub(crate) fn stuck(&self, reason: &str) {
        if let FeedState::Waiting { why, .. } = &mut *self.state.lock() {
            reason.clone_into(why);
        }
    }

    /// The resource is not known any more: it waits again.
    pub(crate) fn lost(&self, reason: &str) {
        let mut state = self.state.lock();
        if let FeedState::Synced { .. } = &*state {
            *state = FeedState::Waiting { since: now(), why: reason.into() };
            self.synced.send_replace(false);
        }
    }

    pub(crate) fn complete(&self) {
        *self.state.lock() = FeedState::Synced { last_attempt: now() };
        self.synced.send_replace(true);
    }

    pub(crate) fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }
}
