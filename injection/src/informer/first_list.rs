//! The first list of an informer that is opened at run time.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Cached, Informer, InformerHandle, InformerState};
use crate::ordered_watch as watch;

/// The time after which a first list is overdue.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The error of an informer whose first list is not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the first list of {informer} has not arrived yet: {reason}")]
pub struct NotSynced {
    informer: String,
    reason: String,
}

impl<K: Cached> Informer<K> {
    /// Waits up to ten seconds for the first list of a namespace, or of all that the informer selects, to succeed or to
    /// fail.
    ///
    /// # Errors
    ///
    /// The objects were not listed: the informers of the process are not started, the API server does not know the
    /// Kind or refuses the list, or it has not answered in time.
    pub async fn first_list(&self, namespace: Option<&str>) -> Result<(), NotSynced> {
        let mut progress = self.0.cache.progress.subscribe();
        let result = async {
            loop {
                if let Some(result) = listed(self, namespace) {
                    return result;
                }
                let _ = progress.changed().await;
            }
        };
        timeout(TIMEOUT, result)
            .await
            .unwrap_or_else(|_| Err(self.not_synced(self.overdue_reason(namespace))))
    }

    fn overdue_reason(&self, namespace: Option<&str>) -> &'static str {
        match InformerHandle::state_in(&*self.0, namespace) {
            InformerState::NotStarted => "the informers of this process are not started yet",
            _ => "the API server has not answered yet",
        }
    }

    fn not_synced(&self, reason: &str) -> NotSynced {
        NotSynced { informer: self.name().into(), reason: reason.into() }
    }
}

/// Returns the result of the first list of a namespace, or of all that the informer selects. `None` if it has neither
/// succeeded nor failed yet, and is not overdue.
pub fn listed<K: Cached>(informer: &Informer<K>, namespace: Option<&str>) -> Option<Result<(), NotSynced>> {
    match InformerHandle::state_in(&*informer.0, namespace) {
        InformerState::Synced { .. } => Some(Ok(())),
        InformerState::NotStarted => None,
        InformerState::Waiting { since, reason } if reason.is_empty() => {
            let is_overdue = since.elapsed() >= TIMEOUT;
            is_overdue.then(|| Err(informer.not_synced(informer.overdue_reason(namespace))))
        }
        InformerState::Waiting { reason, .. } | InformerState::Unavailable { reason, .. } => {
            Some(Err(informer.not_synced(&reason)))
        }
    }
}

/// Returns a future that calls `act` each time the first list of a namespace succeeds or fails, and once if it is overdue.
/// It ends when each has succeeded, and when the informer is dropped, which it does not keep.
pub fn on_first_lists<K: Cached, F: Fn() + Send>(
    informer: &Informer<K>,
    act: F,
) -> impl Future<Output = ()> + Send + use<K, F> {
    follow(informer.0.cache.progress.subscribe(), act)
}

/// The progress of a first list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Pending,
    Failed,
    Listed,
}

impl Step {
    fn of(state: &InformerState) -> Self {
        match state {
            InformerState::Synced { .. } => Self::Listed,
            _ if state.reason().is_some() => Self::Failed,
            _ => Self::Pending,
        }
    }
}

async fn follow(mut progress: watch::Receiver<Vec<InformerState>>, act: impl Fn() + Send) {
    let mut overdue_at = Some(Instant::now() + TIMEOUT);
    let mut before: Vec<_> = progress.borrow().iter().map(|_| Step::Pending).collect();
    loop {
        let steps: Vec<_> = progress.borrow().iter().map(Step::of).collect();
        if steps != before {
            act();
        }
        if steps.iter().all(|step| *step == Step::Listed) {
            return;
        }
        before = steps;
        let due = overdue_at;
        tokio::select! {
            biased;
            changed = progress.changed() => if changed.is_err() { return },
            () = crate::timing::sleep_until_optional(due) => {
                overdue_at = None;
                act();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{api::DynamicObject, discovery::ApiResource};

    use crate::{
        Context, select,
        testing::{map, server},
    };

    #[tokio::test]
    async fn a_kind_that_no_constructor_requested_is_listed_before_it_is_read() {
        let (client, mut server) = server();
        let informers = Context::new("test", client).informers();
        informers.start();
        let kind = ApiResource::erase::<ConfigMap>(&());
        let objects = [map("a", "5")];
        let (maps, _watch) =
            tokio::join!(informers.open::<DynamicObject>(&kind, select()), server.sync("10", &objects));
        assert_eq!(maps.unwrap().list().count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn opening_a_kind_that_is_not_listed_in_time_fails() {
        let (client, _server) = server();
        let informers = Context::new("test", client).informers();
        let error = async || informers.open::<ConfigMap>(&(), select()).await.unwrap_err().to_string();
        let message = "the first list of configmaps has not arrived yet: the informers of this process are not started yet";
        assert_eq!(error().await, message);
        informers.start();
        assert!(error().await.ends_with("the API server has not answered yet"));
    }
}
