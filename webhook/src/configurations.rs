//! The configurations by which the API server calls a webhook.

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
    admission::mutator::{Mutator, rules_of},
    server::routes::{CONFIG_VALIDATION, DEFAULTING, VALIDATION},
    webhook::Webhook,
};

/// The entry of this webhook in a webhook configuration. The entry and the configuration have the same name.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) path: &'static str,
    pub(crate) rules: Value,
    pub(crate) is_mutating: bool,
    /// The mutator that the entry calls, if it is not a step of the webhook's own.
    pub(crate) mutator: Option<Arc<dyn Mutator>>,
}

impl Webhook {
    /// Returns the entries of this webhook, each in a configuration of its own.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let name = |prefix: &str| format!("{prefix}.webhook.{}", self.domain);
        let entry = |prefix, path, rules| {
            let (name, is_mutating) = (name(prefix), path == DEFAULTING);
            Entry { name, path, rules, is_mutating, mutator: None }
        };
        let entries = [
            (self.defaulting.is_empty(), entry("defaulting", DEFAULTING, self.defaulting_rules())),
            (self.validation.is_empty(), entry("validation", VALIDATION, self.validation_rules())),
            (self.config_maps.is_empty(), entry("config", CONFIG_VALIDATION, Self::config_map_rules())),
        ];
        let used = entries.into_iter().filter_map(|(is_unused, entry)| (!is_unused).then_some(entry));
        let mutators = self.mutators.iter().map(|(path, mutator)| Entry {
            name: name(path.trim_start_matches('/')),
            path,
            rules: rules_of(&**mutator),
            is_mutating: true,
            mutator: Some(mutator.clone()),
        });
        used.chain(mutators).collect()
    }

    /// Returns the configurations of this webhook: MutatingWebhookConfigurations for defaulting and mutators,
    /// ValidatingWebhookConfigurations for validation and ConfigMaps, with the rules for its Kinds. `client_config`
    /// returns the client configuration for a path. Requests fail while the webhook is down.
    ///
    /// The configurations have the names that [`assemble`](Self::assemble) expects. The controller that `assemble`
    /// returns keeps their rules and CA bundles up to date.
    ///
    /// ```
    /// use k8s_openapi::api::{
    ///     admissionregistration::v1::{ServiceReference, WebhookClientConfig},
    ///     core::v1::Namespace,
    /// };
    /// use reknit_webhook::Webhook;
    ///
    /// let webhook = Webhook::new("demo.reknit.dev").callback(async |_: Namespace, _| Ok::<_, String>(()));
    /// let configurations = webhook.configurations(|path| WebhookClientConfig {
    ///     service: Some(ServiceReference {
    ///         name: "webhook".into(),
    ///         namespace: "demo".into(),
    ///         path: Some(path.into()),
    ///         ..ServiceReference::default()
    ///     }),
    ///     ..WebhookClientConfig::default()
    /// });
    /// assert_eq!(configurations[0].metadata.name.as_deref(), Some("validation.webhook.demo.reknit.dev"));
    /// assert_eq!(configurations[0].data["webhooks"][0]["rules"][0]["resources"][0], "namespaces");
    /// ```
    pub fn configurations(&self, client_config: impl Fn(&str) -> WebhookClientConfig) -> Vec<DynamicObject> {
        let configuration = |entry: Entry| {
            let client_config = json!(client_config(entry.path));
            match entry.is_mutating {
                true => entry.configuration::<MutatingWebhookConfiguration>(&client_config),
                false => entry.configuration::<ValidatingWebhookConfiguration>(&client_config),
            }
        };
        self.entries().into_iter().map(configuration).collect()
    }
}

impl Entry {
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
