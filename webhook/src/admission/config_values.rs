//! The values of ConfigMaps that a request carries.

use std::{fmt::Display, sync::Arc, time::Duration};

use futures::future::join_all;
use kube::core::admission::AdmissionResponse;
use reknit_apis::Request;
use reknit_injection::{Config, Context, FromConfigMap, InformerHandle, InformerState};
use tokio::time::timeout;

use super::{
    denial::deny,
    review::{Review, ReviewOutcome},
};
use crate::webhook::Webhook;

/// The maximum time that the webhook waits for the ConfigMaps before it accepts requests. A ConfigMap that is invalid
/// from the start must not stop the webhook, which may be needed to repair it.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The ConfigMaps whose values requests carry.
#[derive(Clone, Default)]
pub(crate) struct ConfigValues {
    declared: Vec<fn(&Context) -> ConfigValue>,
    /// Empty until the ConfigMaps are watched.
    watched: Vec<ConfigValue>,
}

/// The latest value of a ConfigMap.
#[derive(Clone)]
pub(crate) struct ConfigValue {
    config_map: &'static str,
    /// The informer of the ConfigMap; `None` without a system namespace.
    informer: Option<Arc<dyn InformerHandle>>,
    add_to: Arc<dyn Fn(Request) -> Request + Send + Sync>,
}

impl ConfigValue {
    fn watch<T: FromConfigMap>(cx: &Context) -> Self {
        let config = Config::<T>::new(cx, |_| {});
        Self {
            config_map: T::NAME,
            informer: config.handle(),
            add_to: Arc::new(move |request| request.with::<T>(config.get())),
        }
    }

    /// Fails with the reason if there is no valid value yet.
    fn check_read(&self) -> Result<(), String> {
        let reason = match self.informer.as_ref().map(|informer| informer.state()) {
            None | Some(InformerState::Synced { .. }) => return Ok(()),
            Some(InformerState::Waiting { reason, .. }) if !reason.is_empty() => reason,
            Some(InformerState::Waiting { .. } | InformerState::NotStarted) => "not listed yet".into(),
        };
        Err(format!("the webhook has not read ConfigMap {} yet: {reason}", self.config_map))
    }
}

impl ConfigValues {
    /// Waits until each ConfigMap is read, for at most [`READ_TIMEOUT`]. Logs the ConfigMaps that are not read by then.
    pub(crate) async fn wait_until_read(&self) {
        let informers = self.watched.iter().filter_map(|value| value.informer.as_ref());
        let read = join_all(informers.map(|informer| informer.synced()));
        if timeout(READ_TIMEOUT, read).await.is_err() {
            let failures = self.watched.iter().filter_map(|value| value.check_read().err());
            failures.for_each(|reason| tracing::warn!(reason, "requests that need a ConfigMap are denied"));
        }
    }

    /// Returns the request with the current value of each ConfigMap. Fails if a ConfigMap is not read yet.
    fn add_to(&self, request: Request) -> Result<Request, String> {
        self.watched.iter().try_fold(request, |request, value| {
            value.check_read()?;
            Ok((value.add_to)(request))
        })
    }
}

impl Webhook {
    /// Declares configuration that defaults and rules read by [`Request::config`]: the webhook watches the ConfigMap,
    /// and each request carries its latest valid value, as [`Config`] returns it. One request reads one value of each
    /// type, even if the ConfigMap changes meanwhile. In Knative's Go library, the context of `SetDefaults` and
    /// `Validate` carries such values.
    ///
    /// A webhook that has just started denies requests with 503 until it has read a valid ConfigMap, or found that
    /// there is none. [`config_validation`](Self::config_validation) refuses invalid changes of the ConfigMap, and
    /// works even before that. The service account of the webhook needs permission to list and watch ConfigMaps in the
    /// system namespace.
    ///
    /// A test without a server sets the value with [`TestRequest::with`](crate::TestRequest::with).
    ///
    /// ```
    /// use std::{collections::BTreeMap, error::Error};
    ///
    /// use reknit_apis::{FieldError, Request, Validatable, kind};
    /// use reknit_injection::FromConfigMap;
    /// use reknit_webhook::{TestRequest, Webhook};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Default)]
    /// struct Limits {
    ///     watts: u32,
    /// }
    ///
    /// impl FromConfigMap for Limits {
    ///     const NAME: &'static str = "config-limits";
    ///
    ///     fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
    ///         Ok(Self { watts: data.get("watts").map_or(Ok(40), |text| text.parse())? })
    ///     }
    /// }
    ///
    /// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    /// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
    /// struct LampSpec {
    ///     watts: u32,
    /// }
    ///
    /// kind!(Lamp {});
    ///
    /// impl Validatable for Lamp {
    ///     fn validate(&self, request: &Request) -> FieldError {
    ///         let limits = request.config::<Limits>();
    ///         match self.spec.watts {
    ///             watts if watts > limits.watts => FieldError::out_of_bounds(watts, 1, limits.watts, "spec.watts"),
    ///             _ => FieldError::none(),
    ///         }
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let webhook = Webhook::new("demo.reknit.dev").validation::<Lamp>().config::<Limits>();
    /// let bright = TestRequest::create(Lamp::new("hall", LampSpec { watts: 100 }));
    /// assert!(webhook.admit(bright.clone().with(Limits { watts: 60 })).await.is_err());
    /// assert!(webhook.admit(bright.with(Limits { watts: 200 })).await.is_ok());
    /// # }
    /// ```
    pub fn config<T: FromConfigMap>(mut self) -> Self {
        self.config_values.declared.push(ConfigValue::watch::<T>);
        self
    }

    /// Watches the ConfigMaps of [`config`](Self::config) in the system namespace of the Context. Their informers start
    /// together with the other informers of the Context. [`assemble`](Self::assemble) calls this. Without `assemble`,
    /// call it before [`serve`](Self::serve).
    pub fn watch_configs(mut self, cx: &Context) -> Self {
        // No controller waits for these informers.
        let cx = cx.scoped();
        self.config_values.watched = self.config_values.declared.iter().map(|watch| watch(&cx)).collect();
        self
    }

    /// Handles a review whose request carries the values of the ConfigMaps. Denies the request if a value is still
    /// missing.
    pub(crate) fn handle_with_configs(
        &self,
        mut review: Review,
        handler: impl FnOnce(&Self, Review) -> ReviewOutcome,
    ) -> ReviewOutcome {
        if let Some(mut change) = review.change.take() {
            change.request = match self.config_values.add_to(change.request) {
                Ok(request) => request,
                Err(reason) => return unavailable(review.response, reason).into(),
            };
            review.change = Some(change);
        }
        handler(self, review)
    }
}

/// Denies a request that may succeed later.
fn unavailable(response: AdmissionResponse, reason: impl Display) -> AdmissionResponse {
    let mut response = deny(response, reason);
    response.result.reason = "ServiceUnavailable".into();
    response.result.code = 503;
    response
}
