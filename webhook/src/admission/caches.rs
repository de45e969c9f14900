//! The informers from which requests are answered.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use reknit_injection::InformerHandle;
use tokio::time::timeout;

use super::denial::Denial;

/// The maximum time that the webhook waits for these informers before it accepts requests. An object that is missing or
/// invalid from the start must not stop the webhook, which may be needed to repair it.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// The informers from which requests are answered, each with the name of what it caches.
#[derive(Clone, Default)]
pub(crate) struct Caches(Vec<(String, Arc<dyn InformerHandle>)>);

impl Caches {
    pub(crate) fn add(&mut self, name: &str, informer: Arc<dyn InformerHandle>) {
        self.0.push((name.into(), informer));
    }

    /// Denies a request if an informer is not synced.
    pub(crate) fn check(&self) -> Result<(), Denial> {
        self.problems().next().map_or(Ok(()), |reason| Err(Denial::unavailable(reason)))
    }

    /// Waits until the informers are synced, for at most [`SYNC_TIMEOUT`]. Logs those that are not synced by then.
    pub(crate) async fn wait_until_synced(&self) {
        let synced = join_all(self.0.iter().map(|(_, informer)| informer.synced()));
        if timeout(SYNC_TIMEOUT, synced).await.is_err() {
            self.problems().for_each(|reason| tracing::warn!(reason, "requests that need it are denied"));
        }
    }

    /// The reasons why informers are not synced.
    fn problems(&self) -> impl Iterator<Item = String> {
        let unsynced = self.0.iter().filter(|(_, informer)| !informer.is_synced());
        unsynced.map(|(name, informer)| {
            let state = informer.state();
            let reason = state.reason().unwrap_or("not listed yet");
            format!("the webhook has not read {name} yet: {reason}")
        })
    }
}
