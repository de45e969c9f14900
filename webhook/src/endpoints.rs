//! The paths of a webhook for admission reviews, each with the configuration that makes the API server call it.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::{
    Resource,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use crate::{
    admission::{
        mutator::{Mutator, mutate, rules_of},
        outcome::ReviewOutcome,
        ratchet::ratchet,
        review::Review,
    },
    webhook::Webhook,
};

/// A path to which the API server sends reviews. Its webhook configuration has one entry, of the same name.
pub(crate) struct Endpoint {
    pub(crate) path: &'static str,
    pub(crate) review: ReviewHandler,
    /// The step that the path serves, such as `defaulting`.
    pub(crate) step: String,
    /// The name of the entry in the configuration, and by default of the configuration.
    pub(crate) name: String,
    pub(crate) rules: Value,
    pub(crate) is_mutating: bool,
    /// The mutator of [`Webhook::mutator`]. `None` for defaulting, validation and ConfigMaps.
    pub(crate) mutator: Option<Arc<dyn Mutator>>,
}

/// Answers a review.
pub(crate) type ReviewHandler = Arc<dyn Fn(&Webhook, Review) -> ReviewOutcome + Send + Sync>;

impl Webhook {
    /// Returns the paths for which this webhook has Kinds, ConfigMaps or a mutator.
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        let endpoint = |prefix: &str, path, is_mutating, rules, review: ReviewHandler| {
            let name = format!("{prefix}.webhook.{}", self.domain);
            Endpoint { path, review, step: prefix.into(), name, rules, is_mutating, mutator: None }
        };
        let set_defaults: ReviewHandler = Arc::new(Webhook::set_defaults);
        let validate: ReviewHandler = Arc::new(Webhook::validate);
        let validate_config: ReviewHandler = Arc::new(Webhook::validate_config_map);
        let mut endpoints = vec![
            endpoint("defaulting", "/defaulting", true, self.defaulting.rules(), set_defaults),
            endpoint("validation", "/resource-validation", false, self.validation.rules(), validate),
            endpoint("config", "/config-validation", false, self.config_maps.rules(), validate_config),
        ];
        endpoints.retain(|endpoint| endpoint.rules != json!([]));
        for (path, mutator) in &self.mutators {
            let (rules, called) = (rules_of(&**mutator), mutator.clone());
            let review: ReviewHandler = Arc::new(move |webhook, review| webhook.mutate(&*called, review));
            let endpoint = endpoint(path.trim_start_matches('/'), path, true, rules, review);
            endpoints.push(Endpoint { mutator: Some(mutator.clone()), ..endpoint });
        }
        endpoints
    }

    pub(crate) fn set_defaults(&self, review: Review) -> ReviewOutcome {
        self.with_values(review, |review| self.defaulting.review(review))
    }

    pub(crate) fn validate(&self, review: Review) -> ReviewOutcome {
        self.with_values(review, |mut review| {
            if let Some(change) = &mut review.change {
                self.defaulting.complete_old(&review.kind, change);
            }
            self.validation.review(review)
        })
    }

    /// Answers a review whose request carries the values of ConfigMaps. While one is missing, only an update that leaves the
    /// spec alone is admitted, as ratcheting does for any other fault.
    fn with_values(&self, review: Review, handler: impl Fn(Review) -> ReviewOutcome) -> ReviewOutcome {
        let values = &self.request_values;
        ratchet(&self.defaulting, values.add_to(review), |review| values.review(review, &handler))
    }

    pub(crate) fn validate_config_map(&self, review: Review) -> ReviewOutcome {
        ratchet(&self.defaulting, review, |review| self.config_maps.review(review))
    }

    pub(crate) fn mutate(&self, mutator: &dyn Mutator, review: Review) -> ReviewOutcome {
        ratchet(&self.defaulting, review, |review| mutate(mutator, &self.validation.caches, review))
    }

    /// Returns the configurations of this webhook: MutatingWebhookConfigurations for defaulting and mutators,
    /// ValidatingWebhookConfigurations for validation and ConfigMaps, with the rules for its Kinds. `client_config`
    /// returns the client configuration for a path. They name no `failurePolicy`, so the default `Fail` applies: requests
    /// fail while the webhook is down.
    ///
    /// In a process, a controller keeps the rules and CA bundles of these configurations up to date.
    ///
    /// ```
    /// use k8s_openapi::api::admissionregistration::v1::{ServiceReference, WebhookClientConfig};
    /// use reknit_injection::Features;
    /// use reknit_webhook::Webhook;
    ///
    /// let webhook = Webhook::new("demo.reknit.dev").config_validation::<Features>();
    /// let configurations = webhook.configurations(|path| WebhookClientConfig {
    ///     service: Some(ServiceReference {
    ///         name: "webhook".into(),
    ///         namespace: "demo".into(),
    ///         path: Some(path.into()),
    ///         ..ServiceReference::default()
    ///     }),
    ///     ..WebhookClientConfig::default()
    /// });
    /// assert_eq!(configurations[0].metadata.name.as_deref(), Some("config.webhook.demo.reknit.dev"));
    /// assert_eq!(configurations[0].data["webhooks"][0]["rules"][0]["resources"][0], "configmaps");
    /// ```
    pub fn configurations(&self, client_config: impl Fn(&str) -> WebhookClientConfig) -> Vec<DynamicObject> {
        let configuration = |endpoint: Endpoint| {
            let client_config = json!(client_config(endpoint.path));
            match endpoint.is_mutating {
                true => endpoint.configuration::<MutatingWebhookConfiguration>(&client_config),
                false => endpoint.configuration::<ValidatingWebhookConfiguration>(&client_config),
            }
        };
        self.endpoints().into_iter().map(configuration).collect()
    }
}

impl Endpoint {
    fn configuration<K: Resource<DynamicType = ()>>(self, client_config: &Value) -> DynamicObject {
        let mut webhooks = json!([{
            "name": self.name, "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun",
            "clientConfig": client_config, "rules": self.rules,
        }]);
        if let Some(mutator) = &self.mutator {
            mutator.configure(&mut webhooks[0]);
        }
        DynamicObject::new(&self.name, &ApiResource::erase::<K>(&())).data(json!({"webhooks": webhooks}))
    }
}
