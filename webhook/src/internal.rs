//! Functions that other crates of the framework use. They are not part of the public API.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use reknit_injection::Context;
use serde_json::Value;

use crate::{
    assemble::registrations, certificates::registration::Registration, server::clients::ClientAuthority,
    webhook::Webhook,
};
pub use crate::{
    assemble::{certificate_controller, server},
    certificates::{identity::Identity, service::ServiceNames},
    health::Health,
    server::{
        routes::{CONVERSION, answer},
        serve,
    },
};

/// Returns the health of the webhook, for probes of the process. Must be called after [`Webhook::limits`].
pub fn health(webhook: &Webhook) -> Health {
    Health::new(webhook.running.clone(), &webhook.limits)
}

/// Watches the ConfigMaps of [`Webhook::config`], as [`server`] does. Must be called before [`serve`].
pub fn watch_configs(mut webhook: Webhook, cx: &Context) -> Webhook {
    webhook.request_values.watch(cx);
    webhook
}

/// Denies requests that need a [`Validator`](crate::Validator) or a [`Mutator`](crate::Mutator) until the informers that the
/// constructor of the webhook has requested from this Context are synced.
pub fn await_informers(mut webhook: Webhook, cx: &Context) -> Webhook {
    for informer in cx.dependencies() {
        webhook.validation.caches.add(informer.name(), informer.clone());
    }
    webhook
}

/// Shortens the time in which a stopping webhook still answers, so that its server ends within this time. Only a request
/// that is being received or answered may keep it for longer.
pub fn end_within(mut webhook: Webhook, shutdown_timeout: Duration) -> Webhook {
    webhook.shutdown_timeout = shutdown_timeout;
    webhook
}

/// Answers reviews only to clients whose certificate was issued by the authority in this file, for one of these common
/// names, or any if there are none.
pub fn require_client_certificate(mut webhook: Webhook, file: PathBuf, names: Vec<String>) -> Webhook {
    webhook.client_authority = Some(ClientAuthority { file, names });
    webhook
}

/// Refuses changes of a ConfigMap as [`Webhook::config_validation`] does, with a name that is known only at run time. The
/// function does not get `_example`.
pub fn validate_config(
    mut webhook: Webhook,
    name: &str,
    parse: impl Fn(&BTreeMap<String, String>) -> Result<(), String> + Send + Sync + 'static,
) -> Webhook {
    webhook.config_maps.add(name, parse);
    webhook
}

/// Returns what the controller of the certificate sets in the entries of webhook configurations: their names, their paths
/// and their other fields.
pub fn entries(webhook: &Webhook) -> Vec<(String, &'static str, Value)> {
    let registrations = registrations(webhook, &ServiceNames::default(), "");
    let entries = registrations.iter().filter_map(Registration::entry);
    entries.map(|(name, path, fields)| (name.to_owned(), path, fields)).collect()
}

/// Returns the names of the CustomResourceDefinitions whose objects the webhook converts.
pub fn converted_crds(webhook: &Webhook) -> Vec<String> {
    webhook.conversions.crd_names().into_iter().cloned().collect()
}

/// Returns the names of the ConfigMaps that the webhook validates.
pub fn validated_config_maps(webhook: &Webhook) -> Vec<String> {
    webhook.config_maps.names().cloned().collect()
}
