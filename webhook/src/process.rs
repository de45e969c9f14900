//! A webhook within a process that has a Context.

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
    /// The controller that keeps its certificate and has the API server trust it, and the server, which ends in good order
    /// once the process is to end. `reknit_sharedmain::Main::webhook` runs both.
    ///
    /// The configurations have to be there, with an entry of their own name each (where one is not, the log says so as an
    /// error); their rules, their
    /// `namespaceSelector` (namespaces with the label `webhooks.knative.dev/exclude` are left alone), the CA bundle and, where
    /// they name a Service, the path are filled in, and kept. So is the conversion part of the CustomResourceDefinitions.
    ///
    /// | object | entry |
    /// | --- | --- |
    /// | MutatingWebhookConfiguration | `defaulting.webhook.<domain>` |
    /// | ValidatingWebhookConfiguration | `validation.webhook.<domain>` |
    /// | ValidatingWebhookConfiguration | `config.webhook.<domain>` |
    ///
    /// The last one is asked of all ConfigMaps that its selectors admit, and refuses them while the webhook is away. They should
    /// admit those that it checks, by a label, and not `kube-root-ca.crt`: the webhook's own pod cannot start in a namespace that
    /// was made anew until that is there.
    ///
    /// # Errors
    ///
    /// At once, without a system namespace, or where certificates cannot last as [`certificates`](Self::certificates) says. The
    /// server fails where it cannot listen.
    pub fn assemble<L: Future<Output = Result<TcpListener>> + Send + 'static>(
        mut self,
        cx: &Context,
        place: &Place,
        listening: L,
    ) -> Result<(Controller, impl Future<Output = Result<()>> + Send + use<L>)> {
        let namespace = cx.system_namespace().ok_or(
            "SYSTEM_NAMESPACE is not set, and the webhook keeps its certificate in a Secret there: set it to the namespace \
             of the webhook's Service",
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
