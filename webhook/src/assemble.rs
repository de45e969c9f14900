//! The controller and the server that run a webhook in a process.

use k8s_openapi::{
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
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

/// Returns the controller that keeps the certificate and the configurations up to date, and the server, which drains and
/// ends when the process stops. `reknit_sharedmain::Main::webhook` runs both.
///
/// # Errors
///
/// Fails at once without a system namespace, or if the arguments of [`Webhook::certificates`] are out of range. The
/// server fails if it cannot listen.
pub fn assemble<L: Future<Output = Result<TcpListener>> + Send + 'static>(
    mut webhook: Webhook,
    cx: &Context,
    names: &ServiceNames,
    identity: Identity,
    listener: L,
) -> Result<(Controller, impl Future<Output = Result<()>> + Send + use<L>)> {
    let namespace = cx.system_namespace().ok_or(
        "SYSTEM_NAMESPACE is not set: set it to the namespace of the webhook's Service, where the webhook keeps the \
         Secret of its certificate",
    )?;
    webhook.lifetime.check()?;
    webhook.config_maps.system_namespace = Some(namespace.into());
    webhook.request_values.watch(cx);
    let registrations = registrations(&webhook, names);
    let (controller, secret_informer) =
        CertificateReconciler::controller(cx, namespace, names, webhook.lifetime, registrations, &identity);
    let (registry, shutdown) = (cx.metrics().clone(), cx.shutdown());
    let server = async move {
        let listener = listener.await?;
        serve(webhook, listener, &identity, &registry, shutdown.wait())?.await;
        // Until here, the informer passes new certificates to the identity.
        drop(secret_informer);
        Ok(())
    };
    Ok((controller, server))
}

/// Returns the objects that make the API server call the webhook.
fn registrations(webhook: &Webhook, names: &ServiceNames) -> Vec<Registration> {
    let conversion =
        |name: &String| Registration::new::<CustomResourceDefinition>(name.clone(), CONVERSION, None);
    let endpoint = |Endpoint { step, name: entry, path, rules, is_mutating, mutator, .. }: Endpoint| {
        let name = names.configurations.get(&step.to_lowercase().replace('_', "-")).unwrap_or(&entry).clone();
        let registration = match is_mutating {
            true => Registration::new::<MutatingWebhookConfiguration>(name, path, Some(rules)),
            false => Registration::new::<ValidatingWebhookConfiguration>(name, path, Some(rules)),
        };
        registration.with_entry(entry).with_mutator(mutator).excluding_namespaces(webhook.excludes_namespaces)
    };
    let conversions = webhook.conversions.crd_names().into_iter().map(conversion);
    conversions.chain(webhook.endpoints().into_iter().map(endpoint)).collect()
}
