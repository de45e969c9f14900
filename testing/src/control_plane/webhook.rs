//! A webhook that a control plane calls, served by the process of the test.

use std::{net::SocketAddr, time::Duration};

use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::WebhookClientConfig, core::v1::ConfigMap},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use prometheus::Registry;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reknit_injection::Context;
use reknit_webhook::{
    Webhook,
    internal::{self, Identity},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::{ControlPlane, Error};
use crate::eventually::until;

const LIMIT: Duration = Duration::from_secs(30);
/// The label of the ConfigMaps by which a test finds out that the API server calls the webhook.
const PROBE_LABEL: &str = "testing.reknit.dev/probe";
const EXAMPLE_CHECKSUM: &str = "knative.dev/example-checksum";

/// A webhook that a [`ControlPlane`] calls. The webhook stops when this value is dropped; its configurations stay, so
/// the requests that they match then fail.
#[derive(Debug)]
pub struct WebhookServer {
    address: SocketAddr,
    metrics: Registry,
    task: JoinHandle<()>,
}

impl WebhookServer {
    /// Returns the address at which the webhook listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the registry with the metrics of the webhook.
    pub fn metrics(&self) -> &Registry {
        &self.metrics
    }
}

impl Drop for WebhookServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ControlPlane {
    /// Serves a webhook in this process, on 127.0.0.1, and has the API server call it for the objects of a namespace,
    /// and for cluster-scoped objects of its Kinds. Returns once the API server calls it.
    ///
    /// The constructor is the one that the program passes to `Main::webhook`. The CustomResourceDefinitions of the Kinds
    /// have to be installed. The namespace is the system namespace of the
    /// webhook: it holds the ConfigMaps that the webhook reads and validates. The webhook has the permissions of the
    /// administrator. Its configurations are the ones that [`Webhook::configurations`] returns, with the namespace
    /// appended to their names; a second call with the same domain and namespace replaces them. Conversion applies to
    /// all namespaces, and may begin a moment after this returns.
    ///
    /// The certificate is made for the test. A test of the program's own certificates has to run the whole
    /// [`Program`](crate::Program).
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::Pod;
    /// use kube::Api;
    /// use reknit_apis::{FieldError, Request};
    /// use reknit_reconciler::Result;
    /// use reknit_testing::ControlPlane;
    /// use reknit_webhook::{Validator, Webhook};
    ///
    /// struct Labels;
    ///
    /// impl Validator for Labels {
    ///     type Kind = Pod;
    ///     async fn validate(&self, pod: &Pod, _: Option<&Pod>, _: &Request) -> Result<FieldError> {
    ///         Ok(match pod.metadata.labels {
    ///             Some(_) => FieldError::none(),
    ///             None => FieldError::missing(["metadata.labels"]),
    ///         })
    ///     }
    /// }
    ///
    /// # async fn test() -> Result<(), Box<dyn std::error::Error>> {
    /// let plane = ControlPlane::shared().await?;
    /// let namespace = plane.namespace("lamps").await?;
    /// let webhook = Webhook::new("demo.reknit.dev").validator(Labels);
    /// let _server = plane.serve_webhook(&namespace, |_| Ok(webhook)).await?;
    /// let pods: Api<Pod> = Api::namespaced(plane.client()?, &namespace);
    /// assert!(pods.create(&Default::default(), &Pod::default()).await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the webhook cannot be served, if the API server refuses its configurations, or if it does not call the
    /// webhook within thirty seconds.
    pub async fn serve_webhook(
        &self,
        namespace: &str,
        constructor: impl FnOnce(&Context) -> reknit_reconciler::Result<Webhook>,
    ) -> Result<WebhookServer, Error> {
        let client = self.client()?;
        let cx = Context::builder("webhook", client.clone()).system_namespace(Some(namespace.into())).build();
        let webhook =
            constructor(&cx).map_err(|error| Error::cannot("construct the webhook")(error.into_source()))?;
        let webhook = internal::await_informers(webhook, &cx);
        let webhook = internal::watch_configs(webhook, &cx);
        let (ca, identity) = certificate()?;
        let (listener, address) = listen().await?;
        let client_config = |path: &str| WebhookClientConfig {
            url: Some(format!("https://{address}{path}")),
            ca_bundle: Some(ByteString(ca.clone().into_bytes())),
            service: None,
        };
        let mut probes = Vec::new();
        for configuration in webhook.configurations(client_config) {
            let (configuration, probe) = with_probe(configuration, namespace, &webhook);
            let name = configuration.name_any();
            self.apply(&format!("webhook configuration {name}"), &json!(configuration).to_string()).await?;
            probes.push(probe);
        }
        let crds = internal::converted_crds(&webhook);
        let metrics = Registry::new();
        cx.informers().start();
        let serving = internal::serve(webhook, listener, &identity, &metrics, std::future::pending());
        let serving = serving.map_err(|error| Error::cannot("serve the webhook")(error.into_source()))?;
        let server = WebhookServer { address, metrics, task: tokio::spawn(serving) };
        for crd in crds {
            convert_by(&client, &crd, &client_config(internal::CONVERSION)).await?;
        }
        for probe in probes {
            probe.wait_until_called(&client, namespace).await?;
        }
        Ok(server)
    }
}

async fn listen() -> Result<(TcpListener, SocketAddr), Error> {
    let action = "listen for the webhook";
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Error::cannot(action))?;
    let address = listener.local_addr().map_err(Error::cannot(action))?;
    Ok((listener, address))
}

/// Returns a CA certificate in PEM, and the identity of a server on 127.0.0.1 that it certifies.
fn certificate() -> Result<(String, Identity), Error> {
    let action = "make a certificate for the webhook";
    let issue = || {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let leaf = CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&key, &ca)?;
        Ok::<_, rcgen::Error>((ca.pem(), leaf.pem(), key.serialize_pem()))
    };
    let (ca, certificate, key) = issue().map_err(Error::cannot(action))?;
    let identity = Identity::default();
    let replaced = identity.replace(certificate.as_bytes(), key.as_bytes());
    replaced.map_err(|error| Error::cannot(action)(error.into_source()))?;
    Ok((ca, identity))
}

/// Has the API server convert the objects of a CustomResourceDefinition by the webhook.
async fn convert_by(client: &Client, crd: &str, client_config: &WebhookClientConfig) -> Result<(), Error> {
    let mut client_config = json!(client_config);
    // The definition may name a Service, as it does when it is deployed. Only one of url and service may be set.
    client_config["service"] = Value::Null;
    let webhook = json!({"conversionReviewVersions": ["v1"], "clientConfig": client_config});
    let conversion = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}});
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let patched = crds.patch(crd, &PatchParams::default(), &Patch::Merge(conversion)).await;
    patched.map(drop).map_err(Error::cannot(format!("set the conversion of CustomResourceDefinition {crd}")))
}

/// A ConfigMap that one entry of a configuration denies. The API server calls the webhook for all entries of the
/// configuration once it calls it for this one.
struct Probe {
    entry: String,
    config_map: ConfigMap,
}

/// Restricts a configuration to the namespace, and adds the entry of a probe.
///
/// The entry calls the webhook for the probe's ConfigMap on the same path as the configuration's first entry. On the
/// paths for objects of a Kind, the webhook denies every ConfigMap. On the path for ConfigMaps, it denies this one
/// because the annotation with the checksum does not match `_example`.
fn with_probe(
    mut configuration: DynamicObject,
    namespace: &str,
    webhook: &Webhook,
) -> (DynamicObject, Probe) {
    let name = configuration.name_any();
    let label = name.split('.').next().unwrap_or_default().to_owned();
    let entry_name = format!("probe.{name}");
    let namespace_label = json!({"kubernetes.io/metadata.name": namespace});
    if let Some(entries) = configuration.data["webhooks"].as_array_mut() {
        entries
            .iter_mut()
            .for_each(|entry| entry["namespaceSelector"]["matchLabels"] = namespace_label.clone());
        let mut probe: Value = entries.first().cloned().unwrap_or_default();
        probe["name"] = json!(entry_name);
        probe["objectSelector"] = json!({"matchLabels": {PROBE_LABEL: label}});
        probe["rules"] = json!([{
            "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
        }]);
        entries.push(probe);
    }
    configuration.metadata.name = Some(format!("{name}.{namespace}"));
    let validated = internal::validated_config_maps(webhook);
    let config_map_name = validated.first().filter(|_| label == "config").cloned();
    let mut config_map = ConfigMap::default();
    config_map.metadata.name = Some(config_map_name.unwrap_or_else(|| format!("probe-{label}")));
    config_map.labels_mut().insert(PROBE_LABEL.into(), label);
    config_map.annotations_mut().insert(EXAMPLE_CHECKSUM.into(), "none".into());
    config_map.data = Some([("_example".to_owned(), "a probe".to_owned())].into());
    (configuration, Probe { entry: entry_name, config_map })
}

impl Probe {
    async fn wait_until_called(&self, client: &Client, namespace: &str) -> Result<(), Error> {
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let denied = format!("admission webhook \"{}\" denied the request", self.entry);
        let called = until(LIMIT, || async {
            match config_maps.create(&dry_run, &self.config_map).await {
                Err(kube::Error::Api(status)) if status.message.starts_with(&denied) => Ok(()),
                Err(error) => Err(error.to_string()),
                Ok(_) => Err("the API server does not call it".to_owned()),
            }
        });
        let what = format!("calling webhook {}", self.entry);
        called.await.map_err(|last| Error::timeout(&what, LIMIT, &last))
    }
}
