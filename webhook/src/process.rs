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
        configuration::Configuration, controller::CertificateReconciler, identity::Identity,
        service::ServiceNames,
    },
    configurations::Entry,
    server::routes::CONVERSION,
    webhook::Webhook,
};

impl Webhook {
    /// Returns the controller that keeps the certificate and the configurations up to date, and the server, which
    /// drains and ends when the process stops. `reknit_sharedmain::Main::webhook` runs both.
    ///
    /// The configurations must exist, each with an entry of its own name; otherwise the controller logs an error. The
    /// controller sets the following fields of these entries: the rules, the CA bundle, a `namespaceSelector` that
    /// excludes namespaces with the label `webhooks.knative.dev/exclude`, and the path of its Service, or of its URL if
    /// that has none. It also sets the CA bundle and the path in `spec.conversion` of the CustomResourceDefinitions.
    ///
    /// | object | entry |
    /// | --- | --- |
    /// | MutatingWebhookConfiguration | `defaulting.webhook.<domain>` |
    /// | MutatingWebhookConfiguration | the path of each [mutator](Self::mutator) and `.webhook.<domain>` |
    /// | ValidatingWebhookConfiguration | `validation.webhook.<domain>` |
    /// | ValidatingWebhookConfiguration | `config.webhook.<domain>` |
    ///
    /// The API server calls `config.webhook.<domain>` for all ConfigMaps that the selectors of the entry match, and
    /// refuses changes of these ConfigMaps while the webhook is down. The selectors should match the checked ConfigMaps
    /// by a label. They must not match `kube-root-ca.crt`: in a new namespace, the pod of the webhook cannot start
    /// until that ConfigMap exists.
    ///
    /// # Errors
    ///
    /// Fails at once without a system namespace, or if the arguments of [`certificates`](Self::certificates) are out of
    /// range. The server fails if it cannot listen.
    pub fn assemble<L: Future<Output = Result<TcpListener>> + Send + 'static>(
        mut self,
        cx: &Context,
        names: &ServiceNames,
        listener: L,
    ) -> Result<(Controller, impl Future<Output = Result<()>> + Send + use<L>)> {
        let namespace = cx.system_namespace().ok_or(
            "SYSTEM_NAMESPACE is not set: set it to the namespace of the webhook's Service, where the webhook keeps the \
             Secret of its certificate",
        )?;
        self.lifetime.check()?;
        self.system_namespace = Some(namespace.into());
        self = self.watch_configs(cx);
        let identity = Identity::default();
        let configurations = self.maintained_configurations();
        let (controller, secret_informer) =
            CertificateReconciler::controller(cx, namespace, names, self.lifetime, configurations, &identity);
        let (registry, shutdown) = (cx.metrics().clone(), cx.shutdown());
        let server = async move {
            let listener = listener.await?;
            self.serve(listener, &identity, &registry, shutdown.wait())?.await;
            // Until here, the informer passes new certificates to the identity.
            drop(secret_informer);
            Ok(())
        };
        Ok((controller, server))
    }

    /// Returns the objects that the controller keeps up to date.
    fn maintained_configurations(&self) -> Vec<Configuration> {
        let conversion =
            |name: &String| Configuration::new::<CustomResourceDefinition>(name.clone(), CONVERSION, None);
        let entry = |Entry { name, path, rules, is_mutating, mutator }: Entry| {
            let configuration = match is_mutating {
                true => Configuration::new::<MutatingWebhookConfiguration>(name, path, Some(rules)),
                false => Configuration::new::<ValidatingWebhookConfiguration>(name, path, Some(rules)),
            };
            configuration.with_mutator(mutator)
        };
        let conversions = self.crd_names().into_iter().map(conversion);
        conversions.chain(self.entries().into_iter().map(entry)).collect()
    }
}
