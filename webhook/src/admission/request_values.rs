//! The values of ConfigMaps that a request carries.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use reknit_apis::Request;
use reknit_injection::{Config, Context, FromConfigMap, InformerHandle, InformerState, config_map_name};
use tokio::time::timeout;

use super::{
    denial::Denial,
    review::{Review, ReviewOutcome},
    rules::unsynced_reason,
};

/// The maximum time that the webhook waits for the ConfigMaps before it accepts requests. A ConfigMap that is invalid
/// from the start must not stop the webhook, which may be needed to repair it.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The ConfigMaps whose values requests carry.
#[derive(Clone, Default)]
pub(crate) struct RequestValues {
    declared: Vec<fn(&Context) -> ConfigValue>,
    /// Empty until the ConfigMaps are watched.
    watched: Vec<ConfigValue>,
}

/// The latest value of a ConfigMap.
#[derive(Clone)]
struct ConfigValue {
    config_map: String,
    /// The informer of the ConfigMap; `None` without a system namespace.
    informer: Option<Arc<dyn InformerHandle>>,
    add_to: Arc<dyn Fn(Request) -> Request + Send + Sync>,
}

impl ConfigValue {
    fn watch<T: FromConfigMap>(cx: &Context) -> Self {
        let config = Config::<T>::new(cx, |_| {});
        Self {
            config_map: config_map_name(T::NAME),
            informer: config.handle(),
            add_to: Arc::new(move |request| request.with::<T>(config.get())),
        }
    }

    /// Fails with the reason if there is no valid value yet.
    fn check_read(&self) -> Result<(), String> {
        let reason = match self.informer.as_ref().map(|informer| informer.state()) {
            None | Some(InformerState::Synced { .. }) => return Ok(()),
            Some(state) => unsynced_reason(state),
        };
        Err(format!("the webhook has not read ConfigMap {} yet: {reason}", self.config_map))
    }
}

impl RequestValues {
    /// Waits until each ConfigMap is read, for at most [`READ_TIMEOUT`]. Logs the ConfigMaps that are not read by then.
    pub(crate) async fn wait_until_read(&self) {
        let informers = self.watched.iter().filter_map(|value| value.informer.as_ref());
        let read = join_all(informers.map(|informer| informer.synced()));
        if timeout(READ_TIMEOUT, read).await.is_err() {
            let failures = self.watched.iter().filter_map(|value| value.check_read().err());
            failures.for_each(|reason| tracing::warn!(reason, "requests that need a ConfigMap are denied"));
        }
    }

    /// Declares a ConfigMap.
    pub(crate) fn declare<T: FromConfigMap>(&mut self) {
        self.declared.push(ConfigValue::watch::<T>);
    }

    /// Watches the declared ConfigMaps in the system namespace of the Context. Their informers start together with the
    /// other informers of the Context.
    pub(crate) fn watch(&mut self, cx: &Context) {
        // No controller waits for these informers.
        let cx = cx.scoped();
        self.watched = self.declared.iter().map(|watch| watch(&cx)).collect();
    }

    /// Answers a review whose request carries the values. Denies the request if a value is still missing.
    pub(crate) fn review(
        &self,
        mut review: Review,
        handler: impl FnOnce(Review) -> ReviewOutcome,
    ) -> ReviewOutcome {
        if let Some(mut change) = review.change.take() {
            let name = change.request.name.clone();
            change.request = match self.add_to(change.request) {
                Ok(request) => request,
                Err(reason) => {
                    return Denial::unavailable(reason).deny(review.response, &review.kind, &name).into();
                }
            };
            review.change = Some(change);
        }
        handler(review)
    }

    /// Returns the request with the current value of each ConfigMap. Fails if a ConfigMap is not read yet.
    fn add_to(&self, request: Request) -> Result<Request, String> {
        self.watched.iter().try_fold(request, |request, value| {
            value.check_read()?;
            Ok((value.add_to)(request))
        })
    }
}
