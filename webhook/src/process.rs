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
        configuration::Configuration, controller::CertificateReconciler, identity::Identity, service::Place,
    },
    server::routes::{CONFIG_VALIDATION, CONVERSION, DEFAULTING, VALIDATION},
    webhook::Webhook,
};

impl Webhook {
    /// Returns the controller that keeps the certificate and the configurations, and the server, which drains and ends when the
    /// process stops. `reknit_sharedmain::Main::webhook` runs both.
    ///
    /// The configurations must exist and have an entry with their own name each; otherwise the controller logs an error. The
    /// controller keeps the following fields of these entries: their rules, the CA bundle, a `namespaceSelector` that excludes
    /// namespaces with the label `webhooks.knative.dev/exclude`, and the path if they name a Service. It keeps the conversion part
    /// of the CustomResourceDefinitions, too.
    ///
    /// | object | entry |
    /// | --- | --- |
    /// | MutatingWebhookConfiguration | `defaulting.webhook.<domain>` |
    /// | ValidatingWebhookConfiguration | `validation.webhook.<domain>` |
    /// | ValidatingWebhookConfiguration | `config.webhook.<domain>` |
    ///
    /// The API server calls the last one for all ConfigMaps that its selectors match, and refuses their changes while the webhook
    /// is down. The selectors should match the checked ConfigMaps by a label, and not `kube-root-ca.crt`: in a new namespace the
    /// pod of the webhook cannot start until that exists.
    ///
    /// # Errors
    ///
    /// Fails at once without a system namespace, or if the arguments of [`certificates`](Self::certificates) are out of range. The
    /// server fails if it cannot listen.
    pub fn assemble<L: Future<Output = Result<TcpListener>> + Send + 'static>(
        mut self,
        cx: &Context,
        place: &Place,
        listening: L,
    ) -> Result<(Controller, impl Future<Output = Result<()>> + Send + use<L>)> {
        let namespace = cx.system_namespace().ok_or(
            "SYSTEM_NAMESPACE is not set: set it to the namespace of the webhook's Service, where the webhook keeps the \
             Secret of its certificate",
        )?;
        self.lifetime.check()?;
        self.system_namespace = Some(namespace.into());
        let identity = Identity::default();
        let configurations = self.configurations();
        let (controller, secret) =
            CertificateReconciler::controller(cx, namespace, place, self.lifetime, configurations, &identity);
        let (registry, shutdown) = (cx.metrics().clone(), cx.shutdown());
        let server = async move {
            let listener = listening.await?;
            self.serve(listener, &identity, &registry, shutdown.wait())?.await;
            drop(secret);
            Ok(())
        };
        Ok((controller, server))
    }

    fn configurations(&self) -> Vec<Configuration> {
        let name = |what: &str| format!("{what}.webhook.{}", self.domain);
        let definition =
            |name: &String| Configuration::new::<CustomResourceDefinition>(name.clone(), CONVERSION, None);
        let mut all: Vec<_> = self.definitions().into_iter().map(definition).collect();
        if !self.defaulting.is_empty() {
            let (name, rules) = (name("defaulting"), self.defaulting_rules());
            all.push(Configuration::new::<MutatingWebhookConfiguration>(name, DEFAULTING, Some(rules)));
        }
        let validating = [
            ("validation", VALIDATION, self.validation.is_empty(), self.validation_rules()),
            ("config", CONFIG_VALIDATION, self.config_maps.is_empty(), Self::config_map_rules()),
        ];
        for (what, path, _, rules) in validating.into_iter().filter(|(_, _, is_empty, _)| !is_empty) {
            all.push(Configuration::new::<ValidatingWebhookConfiguration>(name(what), path, Some(rules)));
        }
        all
    }
}
