//! An informer without its type, and its progress.

use std::time::Instant;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

/// An informer without its type. A controller keeps a handle for each informer that it needs, and a handle keeps its
/// informer running.
pub trait InformerHandle: Send + Sync {
    /// Returns the resource and the selection, such as `pods` or `deployments.apps [namespace=shop]`.
    fn name(&self) -> &str;

    /// Returns the progress of the informer.
    fn state(&self) -> InformerState;

    /// Waits until the first list is in the cache. Completes immediately if it already is.
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
        /// The time at which the informer was started, or the resource was found to be unknown.
        since: Instant,
        /// The reason, such as "the API server does not know lamps…". Empty while nothing has failed.
        reason: String,
    },
    /// The first list is in the cache.
    Synced {
        /// The time of the last response or failed request. It advances even while the API server is unreachable: if it
        /// does not, the informer itself is stuck.
        last_attempt: Instant,
    },
}

/// The progress of an informer's reflectors, and a channel on which to wait until all are synced.
///
/// There is one reflector for each [part](super::Selection::parts) of the selection.
pub(crate) struct Progress {
    parts: Mutex<Vec<InformerState>>,
    synced: watch::Sender<bool>,
}

/// The time of tokio's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Progress {
    pub(crate) fn not_started(parts: usize) -> Self {
        Self { parts: Mutex::new(vec![InformerState::NotStarted; parts]), synced: watch::Sender::new(false) }
    }

    /// The state of the part that is furthest behind.
    pub(crate) fn state(&self) -> InformerState {
        let parts = self.parts.lock();
        parts.iter().min_by_key(|state| rank(state)).cloned().unwrap_or(InformerState::NotStarted)
    }

    pub(crate) fn mark_started(&self) {
        self.parts.lock().fill(InformerState::Waiting { since: now(), reason: String::new() });
    }

    /// Records the time of a response or a failed request, if the part is synced.
    pub(crate) fn mark_attempt(&self, part: usize) {
        if let Some(InformerState::Synced { last_attempt }) = self.parts.lock().get_mut(part) {
            *last_attempt = now();
        }
    }

    /// Records why the part waits. A synced part stays synced.
    pub(crate) fn mark_failed(&self, part: usize, reason: &str) {
        if let Some(InformerState::Waiting { reason: current, .. }) = self.parts.lock().get_mut(part) {
            reason.clone_into(current);
        }
    }

    /// Makes a synced part wait again, since the API server does not know the resource any more.
    pub(crate) fn mark_not_served(&self, part: usize, reason: &str) {
        let mut parts = self.parts.lock();
        if let Some(state @ InformerState::Synced { .. }) = parts.get_mut(part) {
            *state = InformerState::Waiting { since: now(), reason: reason.into() };
            self.synced.send_replace(false);
        }
    }

    /// Records that the part is listed.
    pub(crate) fn mark_synced(&self, part: usize) {
        let mut parts = self.parts.lock();
        if let Some(state) = parts.get_mut(part) {
            *state = InformerState::Synced { last_attempt: now() };
        }
        if parts.iter().all(|state| matches!(state, InformerState::Synced { .. })) {
            self.synced.send_replace(true);
        }
    }

    /// Records that a test has provided the objects.
    pub(crate) fn mark_preloaded(&self) {
        self.parts.lock().fill(InformerState::Synced { last_attempt: now() });
        self.synced.send_replace(true);
    }

    pub(crate) fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }
}

/// Orders states: not started, waiting with a reason, waiting without a reason, synced. Within a rank, the earliest
/// time comes first.
fn rank(state: &InformerState) -> (u8, Option<Instant>) {
    match state {
        InformerState::NotStarted => (0, None),
        InformerState::Waiting { since, reason } if !reason.is_empty() => (1, Some(*since)),
        InformerState::Waiting { since, .. } => (2, Some(*since)),
        InformerState::Synced { last_attempt } => (3, Some(*last_attempt)),
    }
}
