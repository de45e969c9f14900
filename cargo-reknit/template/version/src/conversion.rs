//! Conversion of objects between the versions of their Kind.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, ServiceReference, WebhookClientConfig,
    WebhookConversion,
};

/// Has the API server convert objects by the webhook, which fills in the path and the CA bundle when it runs.
pub(crate) fn by_webhook(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let service = ServiceReference {
        name: "webhook".into(),
        namespace: "hello-world".into(),
        ..ServiceReference::default()
    };
    let client_config = WebhookClientConfig {
        service: Some(service),
        ..WebhookClientConfig::default()
    };
    definition.spec.conversion = Some(CustomResourceConversion {
        strategy: "Webhook".into(),
        webhook: Some(WebhookConversion {
            client_config: Some(client_config),
            conversion_review_versions: vec!["v1".into()],
        }),
    });
    definition
}
