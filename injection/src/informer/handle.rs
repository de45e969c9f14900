//! An informer without its type, and its progress.

use std::{collections::BTreeMap, future::pending, time::Duration};

use futures::future::{BoxFuture, ready};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::metrics::GaugeShare;
use crate::ordered_watch as watch;

/// The time after which a namespace that still cannot be listed no longer holds up the others, which are listed.
const MAX_WAIT_FOR_NAMESPACE: Duration = Duration::from_secs(60);

/// An informer without its type. A controller keeps a handle for each informer that it needs, and a handle keeps its
/// informer running.
pub trait InformerHandle: Send + Sync {
    /// Returns the resource and the selection, such as `pods` or `deployments.apps [namespace=shop]`.
    fn name(&self) -> &str;

    /// Returns the progress in this namespace, or, for `None`, in the namespace that is furthest behind.
    fn state_in(&self, namespace: Option<&str>) -> InformerState;

    /// Returns the progress of the informer. With several namespaces, that of the one that is furthest behind.
    fn state(&self) -> InformerState {
        self.state_in(None)
    }

    /// Returns true if [`synced`](Self::synced) completes immediately.
    fn is_synced(&self) -> bool;

    /// Waits until the first list is in the cache. Completes immediately if it already is. Of several namespaces, those
    /// that are [unavailable](InformerState::Unavailable) are not waited for, unless all are.
    fn synced(&self) -> BoxFuture<'static, ()>;

    /// Returns false if passes can do without the objects. Then [`synced`](Self::synced) also completes once the objects
    /// are [unavailable](InformerState::Unavailable).
    fn is_required(&self) -> bool {
        true
    }

    /// Returns why no watch of the objects is open although they were listed, if that is so.
    fn unwatched(&self) -> Option<Unwatched> {
        None
    }

    /// Returns the version up to which the watch will report this process's own writes, for each part of the selection
    /// in which it has written.
    #[doc(hidden)]
    fn last_writes(&self) -> Vec<(usize, String)> {
        Vec::new()
    }

    /// Waits until the cache has everything up to this version. Completes immediately for a part that is not synced.
    #[doc(hidden)]
    fn reached(&self, _part: usize, _version: &str) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }

    /// Ends the watch of a part, so that a list replaces what is cached.
    #[doc(hidden)]
    fn list_again(&self, _part: usize) {}
}

/// The reason why no watch is open of objects that were listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwatched {
    /// The time of the first failure since the last watch was open.
    pub since: Instant,
    /// The last failure, such as "failed to watch lamps…".
    pub reason: String,
    /// True if the API server refuses the watch, and so changes are found by lists, with a delay of up to a minute. False
    /// if requests fail in another way, and so changes are not seen until that ends.
    pub is_listed: bool,
}

/// The progress of an informer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InformerState {
    /// The informer is not started.
    NotStarted,
    /// The first list is not complete.
    Waiting {
        /// The time at which the informer was started.
        since: Instant,
        /// The reason, such as "failed to list lamps…". Empty while nothing has failed.
        reason: String,
    },
    /// The API server has answered several times in a row that it does not know the resource, or that this process may
    /// not list it. This ends when somebody installs the CustomResourceDefinition or grants the permission. Objects
    /// that were listed before stay cached. A namespace is also unavailable if its first list has failed for a minute, for
    /// any reason, and another namespace is listed.
    Unavailable {
        /// The time at which the informer was started, or the resource was found to be unavailable.
        since: Instant,
        /// The reason, such as "the API server does not know lamps…".
        reason: String,
        /// True if the objects were listed before.
        was_synced: bool,
    },
    /// The first list is in the cache.
    Synced {
        /// The time of the last response or failed request. It advances even while the API server is unreachable: if it
        /// does not, the informer itself is stuck.
        last_attempt: Instant,
    },
}

/// The progress of an informer's reflectors, on which a task can wait.
///
/// There is one reflector for each [part](super::Selection::parts) of the selection.
pub(crate) struct Progress {
    parts: watch::Sender<Vec<InformerState>>,
    /// The parts that were listed and of which no watch is open, because of failures.
    unwatched: Mutex<BTreeMap<usize, Unwatched>>,
    /// The requests to list the parts again.
    lists: Vec<Notify>,
    /// The number of parts that are not synced.
    unsynced: GaugeShare,
}

impl Progress {
    pub(crate) fn not_started(parts: usize, unsynced: GaugeShare) -> Self {
        Self {
            parts: watch::Sender::new(vec![InformerState::NotStarted; parts]),
            unwatched: Mutex::default(),
            lists: (0..parts).map(|_| Notify::new()).collect(),
            unsynced,
        }
    }

    /// The state of a part, or of the one that is furthest behind.
    pub(crate) fn state(&self, part: Option<usize>) -> InformerState {
        state_of(&self.parts.borrow(), part)
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Vec<InformerState>> {
        self.parts.subscribe()
    }

    pub(crate) fn mark_started(&self) {
        self.change(|parts| {
            parts.fill(InformerState::Waiting { since: Instant::now(), reason: String::new() })
        });
    }

    /// Records the time of a response or a failed request, if the part is synced.
    pub(crate) fn mark_attempt(&self, part: usize) {
        self.parts.send_if_modified(|parts| {
            if let Some(InformerState::Synced { last_attempt }) = parts.get_mut(part) {
                *last_attempt = Instant::now();
            }
            false // nothing waits for it
        });
    }

    /// Records why the part waits, or is not watched. A synced part stays synced. A part that has waited for long is
    /// unavailable if another is synced: the failure then concerns this part alone, such as an object that a conversion
    /// webhook refuses.
    pub(crate) fn mark_failed(&self, part: usize, why: &str) {
        self.change(|parts| {
            let is_another_synced = parts.iter().any(InformerState::is_synced);
            let Some(state) = parts.get_mut(part) else { return };
            match state {
                InformerState::Waiting { since, .. }
                    if is_another_synced && since.elapsed() >= MAX_WAIT_FOR_NAMESPACE =>
                {
                    let (since, reason) = (*since, why.into());
                    *state = InformerState::Unavailable { since, reason, was_synced: false };
                }
                InformerState::Waiting { reason, .. } | InformerState::Unavailable { reason, .. } => {
                    why.clone_into(reason);
                }
                InformerState::Synced { .. } => self.mark_unwatched(part, why, false),
                InformerState::NotStarted => {}
            }
        });
    }

    /// Records why no watch of a part is open. A later failure with the reason of a refusal is that refusal.
    fn mark_unwatched(&self, part: usize, why: &str, is_listed: bool) {
        let mut unwatched = self.unwatched.lock();
        let first = Unwatched { since: Instant::now(), reason: why.into(), is_listed };
        let Unwatched { reason, is_listed: was_listed, .. } = unwatched.entry(part).or_insert(first);
        *was_listed = is_listed || (*was_listed && reason == why);
        why.clone_into(reason);
    }

    /// Records that the API server does not serve the resource, or refuses to list it.
    pub(crate) fn mark_unavailable(&self, part: usize, why: &str) {
        self.change(|parts| {
            let Some(state) = parts.get_mut(part) else { return };
            let (since, was_synced) = match *state {
                InformerState::NotStarted => (Instant::now(), false),
                InformerState::Waiting { since, .. } => (since, false),
                InformerState::Unavailable { since, was_synced, .. } => (since, was_synced),
                InformerState::Synced { .. } => (Instant::now(), true),
            };
            *state = InformerState::Unavailable { since, reason: why.into(), was_synced };
        });
    }

    /// Records that the API server refuses the watch of a part. It is listed instead.
    pub(crate) fn mark_refused(&self, part: usize, why: &str) {
        self.mark_unwatched(part, why, true);
    }

    /// Records that the watch of a part is open.
    pub(crate) fn mark_watched(&self, part: usize) {
        self.unwatched.lock().remove(&part);
    }

    /// The part that has been without a watch for the longest time.
    pub(crate) fn unwatched(&self) -> Option<Unwatched> {
        self.unwatched.lock().values().min_by_key(|unwatched| unwatched.since).cloned()
    }

    pub(crate) fn request_list(&self, part: usize) {
        self.lists.get(part).into_iter().for_each(Notify::notify_one);
    }

    /// Waits until another list of the part is requested.
    pub(crate) async fn list_requested(&self, part: usize) {
        match self.lists.get(part) {
            Some(requests) => requests.notified().await,
            None => pending().await,
        }
    }

    pub(crate) fn mark_synced(&self, part: usize) {
        self.change(|parts| {
            if let Some(state) = parts.get_mut(part) {
                *state = InformerState::Synced { last_attempt: Instant::now() };
            }
        });
    }

    pub(crate) fn mark_preloaded(&self) {
        self.change(|parts| parts.fill(InformerState::Synced { last_attempt: Instant::now() }));
    }

    fn change(&self, change: impl FnOnce(&mut [InformerState])) {
        self.parts.send_modify(|parts| {
            change(parts);
            self.unsynced.set(parts.iter().filter(|state| !state.is_synced()).count());
        });
    }
}

impl InformerState {
    /// Returns true if the first list is in the cache, and the resource is available.
    pub fn is_synced(&self) -> bool {
        matches!(self, Self::Synced { .. })
    }

    /// Returns the reason why the objects cannot be listed. `None` while nothing has failed.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Waiting { reason, .. } | Self::Unavailable { reason, .. } => {
                Some(reason.as_str()).filter(|reason| !reason.is_empty())
            }
            Self::NotStarted | Self::Synced { .. } => None,
        }
    }
}

/// The state of this part, or of the one that is furthest behind.
pub(crate) fn state_of(parts: &[InformerState], part: Option<usize>) -> InformerState {
    let state = match part {
        Some(part) => parts.get(part),
        None => parts.iter().min_by_key(|state| rank(state)),
    };
    state.cloned().unwrap_or(InformerState::NotStarted)
}

/// Returns true if the first list of each part is in the cache. Parts that are unavailable are left out, unless all are.
pub(crate) fn is_synced(parts: &[InformerState]) -> bool {
    is_settled(parts) && parts.iter().any(InformerState::is_synced)
}

/// Returns true if each part is in the cache or unavailable.
pub(crate) fn is_settled(parts: &[InformerState]) -> bool {
    parts.iter().all(|state| state.is_synced() || matches!(state, InformerState::Unavailable { .. }))
}

/// Orders states by progress. For the same progress, the earlier time is further behind.
fn rank(state: &InformerState) -> (u8, Option<Instant>) {
    match state {
        InformerState::NotStarted => (0, None),
        InformerState::Waiting { since, .. } if state.reason().is_some() => (1, Some(*since)),
        InformerState::Waiting { since, .. } => (2, Some(*since)),
        InformerState::Unavailable { since, .. } => (3, Some(*since)),
        InformerState::Synced { last_attempt } => (4, Some(*last_attempt)),
    }
}
