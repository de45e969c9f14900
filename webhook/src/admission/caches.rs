//! The informers from which requests are answered.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use reknit_injection::{InformerHandle, InformerState};
use tokio::time::{Instant, timeout};

use super::denial::Denial;

/// The maximum time that the webhook waits for a failing informer before it accepts requests. An object that is missing or
/// invalid from the start must not stop the webhook, which may be needed to repair it.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum time for which the webhook accepts no requests because a first list is in progress, and for which a mutator
/// is not asked because one is missing. A list that fails for longer may need the objects that the mutator changes, for
/// example the Deployment of a conversion webhook.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval at which the webhook checks whether a first list has failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The informers from which requests are answered, each with the name of what it caches.
#[derive(Clone, Default)]
pub(crate) struct Caches(Vec<(String, Arc<dyn InformerHandle>)>);

impl Caches {
    pub(crate) fn add(&mut self, name: &str, informer: Arc<dyn InformerHandle>) {
        self.0.push((name.into(), informer));
    }

    /// Denies a request if a required informer is not synced.
    pub(crate) fn check(&self) -> Result<(), Denial> {
        let missing = self.0.iter().find(|(_, informer)| informer.is_required() && !informer.is_synced());
        missing.map_or(Ok(()), |(name, informer)| Err(Denial::unavailable(problem(name, &**informer))))
    }

    /// Denies a request to a mutator while a first list is outstanding, but not for more than [`FIRST_LIST_TIMEOUT`]. Then, and
    /// if the resource is unavailable, returns the reasons as warnings.
    pub(crate) fn check_first_lists(&self) -> Result<Vec<String>, Denial> {
        let mut warnings = Vec::new();
        for (name, informer) in &self.0 {
            match informer.state() {
                InformerState::Waiting { since, .. } if since.elapsed() >= FIRST_LIST_TIMEOUT => {
                    warnings.push(problem(name, &**informer));
                }
                InformerState::NotStarted | InformerState::Waiting { .. } => {
                    return Err(Denial::unavailable(problem(name, &**informer)));
                }
                InformerState::Unavailable { was_synced: false, .. } => {
                    warnings.push(problem(name, &**informer));
                }
                InformerState::Unavailable { .. } | InformerState::Synced { .. } => {}
            }
        }
        Ok(warnings)
    }

    /// Waits until the informers are synced, but for [`SYNC_TIMEOUT`] at most for those that fail, and for
    /// [`FIRST_LIST_TIMEOUT`] for the others. Logs those that are not synced by then.
    ///
    /// The webhook is not ready meanwhile. If it were while a long list is in progress, a rollout would replace all replicas
    /// that can answer.
    pub(crate) async fn wait_until_synced(&self) {
        join_all(self.0.iter().map(|(name, informer)| wait_for(name, &**informer))).await;
    }
}

async fn wait_for(name: &str, informer: &dyn InformerHandle) {
    let (began, mut synced) = (Instant::now(), informer.synced());
    let mut wait = SYNC_TIMEOUT;
    while timeout(wait, &mut synced).await.is_err() {
        if !is_in_progress(&informer.state()) || began.elapsed() >= FIRST_LIST_TIMEOUT {
            tracing::warn!(
                reason = problem(name, informer),
                "requests that need it are denied, or admitted with a warning if a mutator needs it"
            );
            return;
        }
        if wait == SYNC_TIMEOUT {
            tracing::info!(
                informer = name,
                "no requests are accepted before the first list, which is in progress"
            );
        }
        wait = CHECK_INTERVAL;
    }
}

/// Returns true if the first list is neither complete nor failed.
fn is_in_progress(state: &InformerState) -> bool {
    matches!(state, InformerState::Waiting { .. }) && state.reason().is_none()
}

/// The reason why an informer is not synced.
fn problem(name: &str, informer: &dyn InformerHandle) -> String {
    let state = informer.state();
    let reason = state.reason().unwrap_or("not listed yet");
    format!("the webhook has not read {name} yet: {reason}")
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::*;

    /// An informer in the state that a test sets.
    struct Fake {
        state: Mutex<InformerState>,
        synced: Arc<Notify>,
    }

    impl Fake {
        fn waiting(reason: &str) -> Arc<Self> {
            let state = InformerState::Waiting { since: Instant::now(), reason: reason.into() };
            Arc::new(Self { state: Mutex::new(state), synced: Arc::default() })
        }

        fn set(&self, state: InformerState) {
            *self.state.lock() = state;
        }
    }

    impl InformerHandle for Fake {
        fn name(&self) -> &str {
            "pods"
        }

        fn state_in(&self, _: Option<&str>) -> InformerState {
            self.state.lock().clone()
        }

        fn is_synced(&self) -> bool {
            self.state.lock().is_synced()
        }

        fn synced(&self) -> BoxFuture<'static, ()> {
            let synced = self.synced.clone();
            Box::pin(async move { synced.notified().await })
        }
    }

    /// Waits for the informer, to which `change` happens after 20 seconds. Returns how long that took.
    async fn seconds_waited_for(informer: &Arc<Fake>, change: impl FnOnce()) -> u64 {
        let (began, mut caches) = (Instant::now(), Caches::default());
        caches.add("pods", informer.clone());
        let changed = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            change();
        };
        tokio::select! {
            biased;
            () = caches.wait_until_synced() => {}
            () = async { changed.await; std::future::pending().await } => {}
        }
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_list_in_progress_is_waited_for_until_it_ends_or_for_a_minute() {
        let pods = Fake::waiting("");
        assert_eq!(seconds_waited_for(&pods, || pods.synced.notify_one()).await, 20);
        assert_eq!(seconds_waited_for(&pods, || {}).await, 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_list_that_fails_or_is_refused_is_waited_for_five_seconds() {
        let failing = Fake::waiting("failed to list pods");
        assert_eq!(seconds_waited_for(&failing, || {}).await, 5);
        let unavailable =
            || InformerState::Unavailable { since: Instant::now(), reason: "403".into(), was_synced: false };
        failing.set(unavailable());
        assert_eq!(seconds_waited_for(&failing, || {}).await, 5);
        let later = Fake::waiting("");
        assert_eq!(seconds_waited_for(&later, || later.set(unavailable())).await, 20);
    }
}
