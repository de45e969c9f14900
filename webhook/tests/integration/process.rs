//! Tests of a webhook with its certificate controller and a real API server.

use std::{
    collections::BTreeMap,
    error::Error,
    net::SocketAddr,
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use http::{Request as HttpRequest, Response};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, Patch, PatchParams, PostParams},
    client::Body,
};
use reknit_apis::{EXAMPLE_CHECKSUM_ANNOTATION, Request, example_checksum};
use reknit_injection::{Context, FromConfigMap, Shutdown, ShutdownTrigger};
use reknit_leadership::Leadership;
use reknit_reconciler::Run;
use reknit_testing::{ControlPlane, eventually};
use reknit_webhook::{
    Mutator, Webhook,
    internal::{Identity, ServiceNames, certificate_controller, server},
};
use rustls::{
    pki_types::{CertificateDer, pem::PemObject},
    version::TLS13,
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, interval},
};
use tower::BoxError;

use crate::{
    bulb::v1alpha1,
    lamp::{Lamp, LampSpec, Shade},
    local_server::{issue_certificate, tls_client},
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A running webhook with its certificate controller, and the namespace for which the API server calls it.
pub(crate) struct Process {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) registry: prometheus::Registry,
    pub(crate) address: SocketAddr,
    domain: String,
    stop: ShutdownTrigger,
    tasks: JoinSet<()>,
}

impl Process {
    pub(crate) async fn start(name: &str, configure: impl FnOnce(Webhook) -> Webhook) -> Self {
        Self::start_through(name, |client| client, |_| ServiceNames::default(), configure).await
    }

    /// Starts a webhook that uses another client than the test, with names that depend on its domain.
    async fn start_through(
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
    async fn configure_defaulting(&self) {
        let configuration: MutatingWebhookConfiguration =
            serde_json::from_value(self.configuration("defaulting", "/defaulting")).unwrap();
        self.mutating().create(&PostParams::default(), &configuration).await.unwrap();
        self.wait_for_watts(Some(40)).await;
    }

    /// Creates a validating configuration.
    async fn configure_validation(&self, prefix: &str, path: &str) {
        let configuration: ValidatingWebhookConfiguration =
            serde_json::from_value(self.configuration(prefix, path)).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &configuration).await.unwrap();
    }

    fn mutating(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    /// Returns the CA bundle of the defaulting configuration.
    async fn ca_bundle(&self) -> String {
        let configuration =
            self.mutating().get(&format!("defaulting.webhook.{}", self.domain)).await.unwrap();
        let ca_bundle = configuration.webhooks.unwrap().remove(0).client_config.ca_bundle;
        String::from_utf8(ca_bundle.unwrap_or_default().0).unwrap()
    }

    async fn secret(&self) -> Secret {
        self.try_secret().await.unwrap()
    }

    pub(crate) async fn try_secret(&self) -> kube::Result<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace).get("webhook-certs").await
    }

    /// Connects as a client that trusts the same bundle as the API server, and returns the served certificate.
    async fn handshake(&self) -> std::io::Result<CertificateDer<'static>> {
        let tcp = TcpStream::connect(self.address).await?;
        let connector = tls_client(&self.ca_bundle().await, &TLS13);
        let stream = connector.connect(self.address.ip().into(), tcp).await?;
        Ok(stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned())
    }

    /// Waits until the controller has not reconciled for a second, so that it reacts only to later changes of the test.
    async fn wait_until_settled(&self) {
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

    fn reconcile_count(&self) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().filter(|family| family.name() == "controller_runtime_reconcile_total");
        family.flat_map(|family| family.get_metric()).map(|metric| metric.get_counter().get_value()).sum()
    }

    /// Waits until a new lamp has these watts after admission: 40 if the API server calls the webhook. The API server
    /// learns of CRDs and webhook configurations by watches, so requests right after a change may still fail.
    async fn wait_for_watts(&self, expected: Option<u32>) {
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
async fn dry_create(client: &Client, namespace: &str) -> kube::Result<Lamp> {
    let spec = LampSpec { room: "hall".into(), watts: None, owner: None, shade: Shade::default() };
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    Api::namespaced(client.clone(), namespace).create(&dry_run, &Lamp::new("x", spec)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_created_and_edited_configurations_are_restored() {
    let process = Process::start("certificate", |webhook| webhook.defaulting::<Lamp>()).await;
    process.configure_defaulting().await;
    let secret = process.secret().await.data.unwrap();
    for key in ["server-key.pem", "server-cert.pem", "ca-cert.pem"] {
        assert!(secret.contains_key(key), "{key} is missing");
    }
    let name = format!("defaulting.webhook.{}", process.domain);
    let before = process.mutating().get(&name).await.unwrap();
    let webhook_entry = before.webhooks.as_ref().unwrap()[0].clone();
    assert_eq!(webhook_entry.client_config.url, Some(process.url("/defaulting")));
    let rule = &webhook_entry.rules.as_ref().unwrap()[0];
    assert_eq!(
        (&rule.resources, &rule.operations),
        (&Some(vec!["lamps".into()]), &Some(vec!["CREATE".into(), "UPDATE".into()]))
    );
    let selector = webhook_entry.namespace_selector.clone().unwrap().match_expressions.unwrap();
    assert_eq!((&*selector[0].key, &*selector[0].operator), ("webhooks.knative.dev/exclude", "DoesNotExist"));

    let mut edited = before.clone();
    edited.webhooks.as_mut().unwrap()[0].rules = None;
    edited.webhooks.as_mut().unwrap()[0].client_config.ca_bundle = None;
    process.mutating().replace(&name, &PostParams::default(), &edited).await.unwrap();
    eventually("the configuration to be restored", TIMEOUT, async || {
        process.mutating().get(&name).await.unwrap().webhooks == before.webhooks
    })
    .await;
    process.wait_for_watts(Some(40)).await;

    process.mutating().delete(&name, &Default::default()).await.unwrap();
    process.wait_for_watts(None).await;
    process.configure_defaulting().await;
}

/// Returns a client that may not list CustomResourceDefinitions.
fn without_definitions(client: Client) -> Client {
    let service = tower::service_fn(move |request: HttpRequest<Body>| {
        let client = client.clone();
        async move {
            if !request.uri().path().ends_with("/customresourcedefinitions") {
                return client.send(request).await.map_err(BoxError::from);
            }
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
                "message": "customresourcedefinitions is forbidden", "code": 403});
            Ok(Response::builder().status(403).body(Body::from(status.to_string().into_bytes()))?)
        }
    });
    Client::new(service, "default")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_may_not_be_listed_does_not_hold_up_the_other_registrations() {
    let names_in = |_: &str| ServiceNames::default();
    let process = Process::start_through("unlisted", without_definitions, names_in, |webhook| {
        webhook.defaulting::<Lamp>().conversion::<v1alpha1::Bulb>()
    });
    process.await.configure_defaulting().await;
}

/// Gives all configurations the name of the domain.
fn one_name(domain: &str) -> ServiceNames {
    let configurations = ["defaulting", "validation", "config"].map(|step| (step.into(), domain.into()));
    ServiceNames { configurations: configurations.into(), ..ServiceNames::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_of_one_name_are_all_registered() {
    let configure =
        |webhook: Webhook| webhook.defaulting::<Lamp>().validation::<Lamp>().config_validation::<Features>();
    let process = Process::start_through("one-name", |client| client, one_name, configure).await;
    let with_entries = |entries: &[(&str, &str)]| {
        let entry = |(step, path): &(&str, &str)| process.configuration(step, path)["webhooks"][0].clone();
        let entries: Vec<_> = entries.iter().map(entry).collect();
        json!({"metadata": {"name": process.domain}, "webhooks": entries})
    };
    let mutating = serde_json::from_value(with_entries(&[("defaulting", "/defaulting")])).unwrap();
    process.mutating().create(&PostParams::default(), &mutating).await.unwrap();
    let steps = [("validation", "/resource-validation"), ("config", "/config-validation")];
    let validating: ValidatingWebhookConfiguration = serde_json::from_value(with_entries(&steps)).unwrap();
    let api: Api<ValidatingWebhookConfiguration> = Api::all(process.client.clone());
    api.create(&PostParams::default(), &validating).await.unwrap();
    process.wait_for_watts(Some(40)).await;
    eventually("both entries to have rules and a bundle", TIMEOUT, async || {
        let entries = api.get(&process.domain).await.unwrap().webhooks.unwrap();
        entries.iter().all(|entry| entry.rules.is_some() && entry.client_config.ca_bundle.is_some())
    })
    .await;
}

/// Selects Lamps with a label, and changes nothing.
struct Labelled([ApiResource; 1]);

impl Mutator for Labelled {
    fn path(&self) -> &'static str {
        "/labelled"
    }

    fn resources(&self) -> &[ApiResource] {
        &self.0
    }

    fn configure(&self, entry: &mut Value) {
        entry["objectSelector"]["matchLabels"] = json!({"labelled": "true"});
    }

    fn mutate(&self, _: &Request, _: Option<&Value>, _: &mut Value) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_a_mutator_gets_its_rules_and_selectors() {
    let labelled = || Labelled([ApiResource::erase::<Lamp>(&())]);
    let process = Process::start("mutator", |webhook| webhook.mutator(labelled())).await;
    let configuration = serde_json::from_value(process.configuration("labelled", "/labelled")).unwrap();
    let name = process.mutating().create(&PostParams::default(), &configuration).await.unwrap().name_any();
    let webhook = eventually("the rules of the mutator", TIMEOUT, async || {
        let webhook = process.mutating().get(&name).await.ok()?.webhooks?.remove(0);
        webhook.rules.is_some().then_some(webhook)
    })
    .await;
    let resources = webhook.rules.into_iter().flatten().flat_map(|rule| rule.resources).flatten();
    assert_eq!(resources.collect::<Vec<_>>(), ["lamps"]);
    assert_eq!(json!(webhook.object_selector.unwrap()), json!({"matchLabels": {"labelled": "true"}}));
    let of_namespaces = webhook.namespace_selector.unwrap().match_expressions.unwrap();
    assert_eq!(of_namespaces[0].key, "webhooks.knative.dev/exclude");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_host_of_a_configuration_is_added_to_the_certificate() {
    let process = Process::start("host", |webhook| webhook.defaulting::<Lamp>()).await;
    process.configure_defaulting().await;
    process.wait_until_settled().await;
    assert!(process.reconcile_count() > 0.0);
    let name = format!("defaulting.webhook.{}", process.domain);
    let mut with_new_host = process.mutating().get(&name).await.unwrap();
    let url = format!("https://localhost:{}/defaulting", process.address.port());
    with_new_host.webhooks.as_mut().unwrap()[0].client_config.url = Some(url);
    process.mutating().replace(&name, &PostParams::default(), &with_new_host).await.unwrap();
    eventually("a certificate for the new host", TIMEOUT, async || {
        let tcp = TcpStream::connect(process.address).await?;
        let connector = tls_client(&process.ca_bundle().await, &TLS13);
        connector.connect("localhost".try_into().unwrap(), tcp).await.map(drop)
    })
    .await;
    process.wait_for_watts(Some(40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_secret_is_filled_and_a_deleted_one_is_created_again_with_its_labels() {
    let process = Process::start("secret", |webhook| webhook.defaulting::<Lamp>()).await;
    process.configure_defaulting().await;
    let secrets: Api<Secret> = Api::namespaced(process.client.clone(), &process.namespace);
    let without_data = Patch::Merge(json!({"data": null, "metadata": {"labels": {"app": "lamps"}}}));
    secrets.patch("webhook-certs", &PatchParams::default(), &without_data).await.unwrap();
    eventually("the Secret to be filled", TIMEOUT, async || {
        secrets.get("webhook-certs").await.unwrap().data.is_some_and(|data| data.len() == 5)
    })
    .await;
    secrets.delete("webhook-certs", &Default::default()).await.unwrap();
    let created =
        eventually("the Secret to be created again", TIMEOUT, async || secrets.get("webhook-certs").await)
            .await;
    assert_eq!(created.metadata.labels.unwrap_or_default()["app"], "lamps");
    process.wait_for_watts(Some(40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_secret_is_repaired() {
    let process = Process::start("damage", |webhook| webhook.defaulting::<Lamp>()).await;
    process.configure_defaulting().await;
    let secrets: Api<Secret> = Api::namespaced(process.client.clone(), &process.namespace);
    let (ca, certificate, key) = issue_certificate();
    let damages = [
        ("server-cert.pem", "nonsense".to_owned()),
        ("server-cert.pem", certificate),
        ("server-key.pem", key.clone()),
        ("ca-cert.pem", String::new()),
        ("ca-cert.pem", ca.clone()),
        ("next-ca-key.pem", "nonsense".to_owned()),
        ("next-ca-key.pem", key.clone()),
        ("next-ca-cert.pem", ca.clone()),
    ];
    for (name, text) in damages {
        let damage = Patch::Merge(json!({"data": {name: ByteString(text.clone().into_bytes())}}));
        secrets.patch("webhook-certs", &PatchParams::default(), &damage).await.unwrap();
        let repaired = eventually(format!("{name} with {text:?} to be repaired"), TIMEOUT, async || {
            let data = process.secret().await.data.unwrap();
            (data[name].0 != text.as_bytes()).then_some(data).ok_or("unchanged")
        })
        .await;
        let certificate = CertificateDer::from_pem_slice(&repaired["server-cert.pem"].0).unwrap();
        eventually(
            format!("the new certificate to be served and trusted after {name}"),
            TIMEOUT,
            async || match process.handshake().await {
                Ok(served) if served == certificate => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await;
    }
    let lamp = dry_create(&process.client, &process.namespace).await.unwrap();
    assert_eq!(lamp.spec.watts, Some(40));
}

#[derive(Default)]
struct Features;

impl FromConfigMap for Features {
    const NAME: &'static str = "config-features";

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let fast = data.get("fast").map(|text| text.parse::<bool>()).transpose();
        fast.map_err(|_| "fast: neither true nor false")?;
        Ok(Self)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unparsable_config_map_and_an_edited_example_are_refused() {
    let process = Process::start("config", |webhook| webhook.config_validation::<Features>()).await;
    process.configure_validation("config", "/config-validation").await;
    let maps: Api<ConfigMap> = Api::namespaced(process.client.clone(), &process.namespace);
    let example = "fast: true";
    let mut map = ConfigMap::default();
    map.metadata.name = Some("config-features".into());
    map.annotations_mut().insert(EXAMPLE_CHECKSUM_ANNOTATION.into(), example_checksum(example));
    map.data = Some(BTreeMap::from([("_example".into(), example.into())]));
    eventually("the ConfigMap to be created", TIMEOUT, async || {
        maps.create(&PostParams::default(), &map).await
    })
    .await;
    let refusal = async |data: Value| {
        let patch = Patch::Merge(json!({"data": data}));
        match maps.patch("config-features", &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) => status.message,
            other => format!("{other:?}"),
        }
    };
    let denial = format!("admission webhook \"config.webhook.{}\" denied the request: ", process.domain);
    let attempts = AtomicU32::new(0);
    eventually("a refusal with the message of the parser", TIMEOUT, async || {
        // Another change each time: the first ones may be stored before the API server calls the webhook, and a change
        // that leaves stored data as it is would be admitted.
        let attempt = attempts.fetch_add(1, Ordering::Relaxed);
        let message = refusal(json!({"fast": format!("very {attempt}")})).await;
        let expected = format!("{denial}validation failed: fast: neither true nor false");
        if message == expected { Ok(()) } else { Err(message) }
    })
    .await;
    let message = refusal(json!({"_example": "fast: false"})).await;
    let expected =
        "validation failed: the update modifies a key in \"_example\" which is probably not what you want.";
    assert!(message.starts_with(&format!("{denial}{expected}")), "{message}");
    let other = Patch::Merge(json!({"data": {"fast": "true"}}));
    maps.patch("config-features", &PatchParams::default(), &other).await.unwrap();
}

/// Configures certificates of twelve seconds that are renewed after five.
fn rotating(webhook: Webhook) -> Webhook {
    webhook.defaulting::<Lamp>().certificates(Duration::from_secs(12), Duration::from_secs(7))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_certificates_are_rotated_every_five_seconds() {
    let process = Process::start("rotation", rotating).await;
    process.configure_defaulting().await;
    let (failed, requested) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut requests = JoinSet::new();
    let (mut ticks, start) = (interval(Duration::from_millis(20)), Instant::now());
    let (mut certificates, mut handshakes) = (Vec::<ByteString>::new(), 0);
    for tick in 0.. {
        if certificates.len() == 4 {
            break;
        }
        assert!(start.elapsed() < TIMEOUT * 2, "{} certificates", certificates.len());
        ticks.tick().await;
        let (client, namespace) = (process.client.clone(), process.namespace.clone());
        let (failed, requested) = (failed.clone(), requested.clone());
        requests.spawn(async move {
            let answer = dry_create(&client, &namespace).await;
            requested.fetch_add(1, Ordering::Relaxed);
            if !answer.as_ref().is_ok_and(|lamp| lamp.spec.watts == Some(40)) {
                println!("{answer:?}");
                failed.fetch_add(1, Ordering::Relaxed);
            }
        });
        // The API server keeps its connections, so a client with the same bundle opens new connections.
        if tick % 10 == 0 {
            let certificate = process.secret().await.data.unwrap()["server-cert.pem"].clone();
            if certificates.last() != Some(&certificate) {
                certificates.push(certificate);
            }
            process.handshake().await.unwrap();
            handshakes += 1;
        }
    }
    while let Some(done) = requests.join_next().await {
        done.unwrap();
    }
    let (failed, requested) = (failed.load(Ordering::Relaxed), requested.load(Ordering::Relaxed));
    println!(
        "{} certificates, {requested} requests, {handshakes} handshakes, {failed} failed",
        certificates.len()
    );
    assert!(requested >= 200, "{requested} requests");
    assert_eq!(failed, 0);
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
