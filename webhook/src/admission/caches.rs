//! The informers from which requests are answered.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use reknit_injection::{InformerHandle, InformerState};
use tokio::time::timeout;

use super::denial::Denial;

/// The maximum time that the webhook waits for these informers before it accepts requests. An object that is missing or
/// invalid from the start must not stop the webhook, which may be needed to repair it.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum time for which a mutator is not asked because a first list is missing. A list that fails for longer may need
/// the objects that the mutator changes, for example the Deployment of a conversion webhook.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(60);

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

    /// Waits until the informers are synced, for at most [`SYNC_TIMEOUT`]. Logs those that are not synced by then.
    pub(crate) async fn wait_until_synced(&self) {
        let synced = join_all(self.0.iter().map(|(_, informer)| informer.synced()));
        if timeout(SYNC_TIMEOUT, synced).await.is_err() {
            let unsynced = self.0.iter().filter(|(_, informer)| !informer.is_synced());
            let reasons = unsynced.map(|(name, informer)| problem(name, &**informer));
            reasons.for_each(|reason| {
                tracing::warn!(
                    reason,
                    "requests that need it are denied, or admitted with a warning if a mutator needs it"
                )
            });
        }
    }
}

/// The reason why an informer is not synced.
fn problem(name: &str, informer: &dyn InformerHandle) -> String {
    let state = informer.state();
    let reason = state.reason().unwrap_or("not listed yet");
    format!("the webhook has not read {name} yet: {reason}")
}
