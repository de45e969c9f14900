//! Waits for the first list of an informer that is opened at run time.

use std::time::Duration;

use super::{Cached, Informer, InformerHandle, InformerState};

/// The longest time to wait for a first list.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The error of an informer whose first list is not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the first list of {informer} has not arrived yet: {reason}")]
pub struct NotSynced {
    informer: String,
    reason: String,
}

impl<K: Cached> Informer<K> {
    /// Waits up to ten seconds for the first list of a namespace, or of all that the informer selects. Does not wait if
    /// the informer already reports why listing fails.
    ///
    /// # Errors
    ///
    /// The objects were not listed: the informers of the process are not started, the API server does not know the
    /// Kind or refuses the list, or it has not answered in time.
    pub async fn first_list(&self, namespace: Option<&str>) -> Result<(), NotSynced> {
        let state = || InformerHandle::state_in(&*self.0, namespace);
        if !matches!(state(), InformerState::Waiting { reason, .. } if !reason.is_empty()) {
            let mut progress = self.0.cache.progress.subscribe();
            let settled = async {
                while matches!(state(), InformerState::NotStarted | InformerState::Waiting { .. }) {
                    let _ = progress.changed().await;
                }
            };
            let _ = tokio::time::timeout(TIMEOUT, settled).await;
        }
        let reason = match state() {
            InformerState::Synced { .. } => return Ok(()),
            InformerState::NotStarted => "the informers of this process are not started yet".into(),
            InformerState::Waiting { reason, .. } if reason.is_empty() => {
                "the API server has not answered yet".into()
            }
            InformerState::Waiting { reason, .. } | InformerState::Unavailable { reason, .. } => reason,
        };
        Err(NotSynced { informer: self.name().into(), reason })
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
