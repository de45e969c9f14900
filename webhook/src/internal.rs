//! Functions that other crates of the framework use. They are not part of the public API.

use crate::{server::routes, webhook::Webhook};

/// The path of conversions between versions.
pub const CONVERSION: &str = routes::CONVERSION;

/// Returns the names of the CustomResourceDefinitions whose objects the webhook converts.
pub fn converted_crds(webhook: &Webhook) -> Vec<String> {
    webhook.crd_names().into_iter().cloned().collect()
}

/// Returns the names of the ConfigMaps that the webhook validates.
pub fn validated_config_maps(webhook: &Webhook) -> Vec<String> {
    webhook.config_maps.keys().cloned().collect()
}
