//! A webhook with its certificate controller, which a real API server calls.

use std::{net::SocketAddr, path::PathBuf, process::Command, time::Duration};

use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret};
use kube::{Api, Client, api::PostParams};
use reknit_injection::{Context, Shutdown, ShutdownTrigger};
use reknit_leadership::Leadership;
use reknit_reconciler::Run;
use reknit_testing::{ControlPlane, eventually};
use reknit_webhook::{
    Webhook,
    internal::{Identity, ServiceNames, certificate_controller, server},
};
use rustls::{pki_types::CertificateDer, version::TLS13};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, interval},
};

use crate::{
    lamp::{Lamp, LampSpec, Shade},
    local_server::tls_client,
};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A running webhook with its certificate controller, and the namespace for which the API server calls it.
pub(crate) struct Process {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) registry: prometheus::Registry,
    pub(crate) address: SocketAddr,
    pub(crate) domain: String,
    stop: ShutdownTrigger,
    tasks: JoinSet<()>,
}

impl Process {
    pub(crate) async fn start(name: &str, configure: impl FnOnce(Webhook) -> Webhook) -> Self {
        Self::start_through(name, |client| client, |_| ServiceNames::default(), configure).await
    }

    /// Starts a webhook that uses another client than the test, with names that depend on its domain.
    pub(crate) async fn start_through(
        name: &str,
        client_of_webhook: fn(Client) -> Client,
        names_in: fn(&str) -> ServiceNames,
        configure: impl FnOnce(Webhook) -> Webhook,
    ) -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        plane.install::<Lamp>().await.unwrap();
        let (client, namespace) = (plane.client().unwrap(), plane.namespace(name).await.unwrap());
        let domain = format!("{namespace}.tests.dev");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, shutdown) = Shutdown::new();
        let registry = prometheus::Registry::new();
        let cx = Context::builder("webhook", client_of_webhook(client.clone()))
            .system_namespace(Some(namespace.clone()))
            .metrics(registry.clone())
            .shutdown(shutdown.clone())
            .build();
        let listening = async { Ok(listener) };
        let (webhook, names) = (configure(Webhook::new(&domain)), names_in(&domain));
        let controller = certificate_controller(&webhook, &cx, &names).unwrap();
        let server = server(webhook, &cx, &names, Identity::default(), listening).unwrap();
        cx.informers().start();
        let mut tasks = JoinSet::new();
        let run = Run {
            leadership: Leadership::always(),
            stop: shutdown,
            drain: Duration::from_secs(5),
            workers: None,
        };
        tasks.spawn(async {
            controller.run(run).await;
        });
        tasks.spawn(async { server.await.unwrap() });
        Self { plane, client, namespace, registry, address, domain, stop, tasks }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    pub(crate) fn configuration(&self, prefix: &str, path: &str) -> Value {
        let name = format!("{prefix}.webhook.{}", self.domain);
        json!({"metadata": {"name": name}, "webhooks": [{
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun",
            "clientConfig": {"url": self.url(path)},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
        }]})
    }

    /// Creates the defaulting configuration, and waits until the API server calls the webhook.
    pub(crate) async fn configure_defaulting(&self) {
        let configuration: MutatingWebhookConfiguration =
            serde_json::from_value(self.configuration("defaulting", "/defaulting")).unwrap();
        self.mutating().create(&PostParams::default(), &configuration).await.unwrap();
        self.wait_for_watts(Some(40)).await;
    }

    pub(crate) fn mutating(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    /// Returns the CA bundle of the defaulting configuration.
    pub(crate) async fn ca_bundle(&self) -> String {
        let configuration =
            self.mutating().get(&format!("defaulting.webhook.{}", self.domain)).await.unwrap();
        let ca_bundle = configuration.webhooks.unwrap().remove(0).client_config.ca_bundle;
        String::from_utf8(ca_bundle.unwrap_or_default().0).unwrap()
    }

    pub(crate) async fn secret(&self) -> Secret {
        self.try_secret().await.unwrap()
    }

    pub(crate) async fn try_secret(&self) -> kube::Result<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace).get("webhook-certs").await
    }

    /// Connects as a client that trusts the same bundle as the API server, and returns the served certificate.
    pub(crate) async fn handshake(&self) -> std::io::Result<CertificateDer<'static>> {
        let tcp = TcpStream::connect(self.address).await?;
        let connector = tls_client(&self.ca_bundle().await, &TLS13);
        let stream = connector.connect(self.address.ip().into(), tcp).await?;
        Ok(stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned())
    }

    /// Waits until the controller has not reconciled for a second, so that it reacts only to later changes of the test.
    pub(crate) async fn wait_until_settled(&self) {
        let (start, mut ticks) = (Instant::now(), interval(Duration::from_millis(20)));
        let (mut count, mut last_change) = (self.reconcile_count(), start);
        while last_change.elapsed() < Duration::from_secs(1) {
            assert!(start.elapsed() < TIMEOUT, "the controller keeps reconciling");
            ticks.tick().await;
            if self.reconcile_count() != count {
                (count, last_change) = (self.reconcile_count(), Instant::now());
            }
        }
    }

    pub(crate) fn reconcile_count(&self) -> f64 {
        self.counter("controller_runtime_reconcile_total")
    }

    /// The sum of the series of a counter.
    pub(crate) fn counter(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().filter(|family| family.name() == name);
        family.flat_map(|family| family.get_metric()).map(|metric| metric.get_counter().get_value()).sum()
    }

    /// Waits until a new lamp has these watts after admission: 40 if the API server calls the webhook. The API server
    /// learns of CRDs and webhook configurations by watches, so requests right after a change may still fail.
    pub(crate) async fn wait_for_watts(&self, expected: Option<u32>) {
        eventually(format!("a lamp with the watts {expected:?}"), TIMEOUT, async || {
            match dry_create(&self.client, &self.namespace).await {
                Ok(lamp) if lamp.spec.watts == expected => Ok(()),
                other => Err(format!("{:?}", other.map(|lamp| lamp.spec.watts))),
            }
        })
        .await;
    }
}

/// Creates a lamp in a dry run and returns it after admission.
pub(crate) async fn dry_create(client: &Client, namespace: &str) -> kube::Result<Lamp> {
    let spec = LampSpec { room: "hall".into(), watts: None, owner: None, shade: Shade::default() };
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    Api::namespaced(client.clone(), namespace).create(&dry_run, &Lamp::new("x", spec)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_webhook_does_not_listen() {
    let limits = reknit_webhook::Limits { quiet_period: Duration::from_millis(200), ..Default::default() };
    let mut process = Process::start("ends", |webhook| webhook.defaulting::<Lamp>().limits(limits)).await;
    process.configure_defaulting().await;
    process.stop.start();
    while let Some(ended) = process.tasks.join_next().await {
        ended.unwrap();
    }
    assert!(TcpStream::connect(process.address).await.is_err());
}

/// Runs kubectl as the administrator. Returns whether it succeeded, and its output.
pub(crate) fn kubectl(plane: &ControlPlane, arguments: &[&str]) -> (bool, String) {
    let mut kubectl =
        Command::new(PathBuf::from(std::env::var("KUBEBUILDER_ASSETS").unwrap()).join("kubectl"));
    let output = kubectl.arg("--kubeconfig").arg(plane.kubeconfig()).args(arguments).output().unwrap();
    let message =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), message)
}
