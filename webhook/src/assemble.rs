//! The two parts of a webhook: the server, and the controller that owns its certificate.

use k8s_openapi::{
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use reknit_apis::Key;
use reknit_injection::Context;
use reknit_reconciler::{Controller, Result};
use tokio::net::TcpListener;

use crate::{
    certificates::{
        controller::CertificateReconciler, identity::Identity, registration::Registration,
        service::ServiceNames,
    },
    endpoints::Endpoint,
    server::{routes::CONVERSION, serve},
    webhook::Webhook,
};

/// Returns the controller that keeps the certificate and the configurations up to date. It needs no request of an API
/// server, so it may run in another process than the [`server`]. `reknit_sharedmain::Main::webhook` runs both.
///
/// # Errors
///
/// Fails without a system namespace, or if the arguments of [`Webhook::certificates`] are out of range.
pub fn certificate_controller(webhook: &Webhook, cx: &Context, names: &ServiceNames) -> Result<Controller> {
    let namespace = system_namespace(cx)?;
    webhook.lifetime.check()?;
    let registrations = registrations(webhook, names, namespace);
    Ok(CertificateReconciler::controller(cx, namespace, names, webhook.lifetime, registrations))
}

/// Returns the server, which drains and ends when the process stops. It serves the certificate of the Secret, and writes
/// nothing.
///
/// # Errors
///
/// Fails at once without a system namespace. The server fails if it cannot listen.
pub fn server<L: Future<Output = Result<TcpListener>> + Send + 'static>(
    mut webhook: Webhook,
    cx: &Context,
    names: &ServiceNames,
    identity: Identity,
    listener: L,
) -> Result<impl Future<Output = Result<()>> + Send + use<L>> {
    let namespace = system_namespace(cx)?;
    webhook.config_maps.system_namespace = Some(namespace.into());
    webhook.request_values.watch(cx);
    let secret_informer = identity.follow(cx, &Key::new(namespace, &names.secret));
    let (registry, shutdown) = (cx.metrics().clone(), cx.shutdown());
    Ok(async move {
        let listener = listener.await?;
        serve(webhook, listener, &identity, &registry, shutdown.wait())?.await;
        // Until here, the informer passes new certificates to the identity.
        drop(secret_informer);
        Ok(())
    })
}

fn system_namespace(cx: &Context) -> Result<&str> {
    Ok(cx.system_namespace().ok_or(
        "SYSTEM_NAMESPACE is not set: set it to the namespace of the webhook's Service, where the webhook keeps the \
         Secret of its certificate, or set ENABLE_WEBHOOKS=false to run without the webhook",
    )?)
}

/// Returns the objects that make the API server call the webhook, whose Service is in this namespace.
pub(crate) fn registrations(webhook: &Webhook, names: &ServiceNames, namespace: &str) -> Vec<Registration> {
    let service = Key::new(namespace, &names.service);
    let conversion = |name: &String| {
        Registration::new::<CustomResourceDefinition>(name.clone(), service.clone(), CONVERSION, None)
    };
    let endpoint = |Endpoint { step, name: entry, path, rules, is_mutating, mutator, .. }: Endpoint| {
        let name = names.configurations.get(&step.to_lowercase().replace('_', "-")).unwrap_or(&entry).clone();
        let (service, rules) = (service.clone(), Some(rules));
        let mut registration = match is_mutating {
            true => Registration::new::<MutatingWebhookConfiguration>(name, service, path, rules),
            false => Registration::new::<ValidatingWebhookConfiguration>(name, service, path, rules),
        };
        registration.entry = entry;
        registration.mutator = mutator;
        registration.excludes_namespaces = webhook.excludes_namespaces;
        registration
    };
    let conversions = webhook.conversions.crd_names().into_iter().map(conversion);
    conversions.chain(webhook.endpoints().into_iter().map(endpoint)).collect()
}
