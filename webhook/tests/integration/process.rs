//! A webhook as a process runs it: with the controller that keeps its certificate, and the API server calling it.

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

use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use reknit_apis::{EXAMPLE_CHECKSUM_ANNOTATION, example_checksum};
use reknit_injection::{Context, FromConfigMap, Shutdown, ShutdownTrigger};
use reknit_reconciler::{Run, leader::Leadership};
use reknit_testing::{ControlPlane, eventually};
use reknit_webhook::{Place, Webhook};
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

use crate::{
    lamp::{Lamp, LampSpec, Shade},
    served::{certificate, tls_client},
};

const LIMIT: Duration = Duration::from_secs(30);

/// A webhook that runs, and the namespace whose requests go through it.
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
    pub(crate) async fn start(name: &str, make: impl FnOnce(Webhook) -> Webhook) -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        plane.install::<Lamp>().await.unwrap();
        let (client, namespace) = (plane.client().unwrap(), plane.namespace(name).await.unwrap());
        let domain = format!("{namespace}.tests.dev");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, shutdown) = Shutdown::new();
        let registry = prometheus::Registry::new();
        let cx = Context::builder("webhook", client.clone())
            .system_namespace(Some(namespace.clone()))
            .metrics(registry.clone())
            .shutdown(shutdown.clone())
            .build();
        let listening = async { Ok(listener) };
        let (keeper, server) =
            make(Webhook::new(&domain)).assemble(&cx, &Place::default(), listening).unwrap();
        cx.informers().start();
        let mut tasks = JoinSet::new();
        let run = Run {
            leadership: Leadership::always(),
            stop: shutdown,
            drain: Duration::from_secs(5),
            workers: None,
        };
        tasks.spawn(async {
            keeper.run(run).await;
        });
        tasks.spawn(async { server.await.unwrap() });
        Self { plane, client, namespace, registry, address, domain, stop, tasks }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    fn configuration(&self, what: &str, path: &str) -> Value {
        let name = format!("{what}.webhook.{}", self.domain);
        json!({"metadata": {"name": name}, "webhooks": [{
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun",
            "clientConfig": {"url": self.url(path)},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
        }]})
    }

    async fn defaulted(&self) {
        let configuration: MutatingWebhookConfiguration =
            serde_json::from_value(self.configuration("defaulting", "/defaulting")).unwrap();
        self.mutating().create(&PostParams::default(), &configuration).await.unwrap();
        eventually("the webhook to be called", LIMIT, async || self.asks().await.spec.watts == Some(40))
            .await;
    }

    async fn validated(&self, what: &str, path: &str) {
        let configuration: ValidatingWebhookConfiguration =
            serde_json::from_value(self.configuration(what, path)).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &configuration).await.unwrap();
    }

    fn mutating(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    /// What clients trust.
    async fn bundle(&self) -> String {
        let configuration =
            self.mutating().get(&format!("defaulting.webhook.{}", self.domain)).await.unwrap();
        let bundle = configuration.webhooks.unwrap().remove(0).client_config.ca_bundle;
        String::from_utf8(bundle.unwrap_or_default().0).unwrap()
    }

    async fn secret(&self) -> Secret {
        self.try_secret().await.unwrap()
    }

    pub(crate) async fn try_secret(&self) -> kube::Result<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace).get("webhook-certs").await
    }

    /// The certificate that is shown to a client that trusts what the API server is told to trust.
    async fn handshake(&self) -> std::io::Result<CertificateDer<'static>> {
        let tcp = TcpStream::connect(self.address).await?;
        let connector = tls_client(&self.bundle().await, &TLS13);
        let stream = connector.connect(self.address.ip().into(), tcp).await?;
        Ok(stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned())
    }

    /// Returns once its controller has done nothing for a second: whatever is to be done comes from outside, or much later.
    async fn rests(&self) {
        let (start, mut ticks) = (Instant::now(), interval(Duration::from_millis(20)));
        let mut last = (self.passes(), start);
        while last.1.elapsed() < Duration::from_secs(1) {
            assert!(start.elapsed() < LIMIT, "the controller does not come to rest");
            ticks.tick().await;
            if self.passes() != last.0 {
                last = (self.passes(), Instant::now());
            }
        }
    }

    fn passes(&self) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().filter(|family| family.name() == "reknit_reconcile_total");
        family.flat_map(|family| family.get_metric()).map(|metric| metric.get_counter().get_value()).sum()
    }

    /// A request that nothing becomes of, as it comes back from admission.
    async fn asks(&self) -> Lamp {
        try_asking(&self.client, &self.namespace).await.unwrap()
    }
}

async fn try_asking(client: &Client, namespace: &str) -> kube::Result<Lamp> {
    let spec = LampSpec { room: "hall".into(), watts: None, owner: None, shade: Shade::default() };
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    Api::namespaced(client.clone(), namespace).create(&dry, &Lamp::new("x", spec)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_made_and_trusted_whoever_edits_the_configuration() {
    let process = Process::start("certificate", |webhook| webhook.defaulting::<Lamp>()).await;
    process.defaulted().await;
    let secret = process.secret().await.data.unwrap();
    for key in ["server-key.pem", "server-cert.pem", "ca-cert.pem"] {
        assert!(secret.contains_key(key), "{key} is missing");
    }
    let name = format!("defaulting.webhook.{}", process.domain);
    let before = process.mutating().get(&name).await.unwrap();
    let hook = before.webhooks.as_ref().unwrap()[0].clone();
    assert_eq!(hook.client_config.url, Some(process.url("/defaulting")));
    let rule = &hook.rules.as_ref().unwrap()[0];
    assert_eq!(
        (&rule.resources, &rule.operations),
        (&Some(vec!["lamps".into()]), &Some(vec!["CREATE".into(), "UPDATE".into()]))
    );
    let selector = hook.namespace_selector.clone().unwrap().match_expressions.unwrap();
    assert_eq!((&*selector[0].key, &*selector[0].operator), ("webhooks.knative.dev/exclude", "DoesNotExist"));

    let mut edited = before.clone();
    edited.webhooks.as_mut().unwrap()[0].rules = None;
    edited.webhooks.as_mut().unwrap()[0].client_config.ca_bundle = None;
    process.mutating().replace(&name, &PostParams::default(), &edited).await.unwrap();
    eventually("the configuration as it was", LIMIT, async || {
        process.mutating().get(&name).await.unwrap().webhooks == before.webhooks
    })
    .await;
    // The API server hears of its own configurations by a watch, too.
    let asked = async |watts| process.asks().await.spec.watts == watts;
    eventually("the webhook to be called again", LIMIT, async || asked(Some(40)).await).await;

    process.mutating().delete(&name, &Default::default()).await.unwrap();
    eventually("the webhook to be called no more", LIMIT, async || asked(None).await).await;
    process.defaulted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_a_configuration_gets_later_is_soon_in_the_certificate() {
    let process = Process::start("host", |webhook| webhook.defaulting::<Lamp>()).await;
    process.defaulted().await;
    process.rests().await;
    assert!(process.passes() > 0.0);
    let name = format!("defaulting.webhook.{}", process.domain);
    let mut moved = process.mutating().get(&name).await.unwrap();
    let url = format!("https://localhost:{}/defaulting", process.address.port());
    moved.webhooks.as_mut().unwrap()[0].client_config.url = Some(url);
    process.mutating().replace(&name, &PostParams::default(), &moved).await.unwrap();
    eventually("a certificate for the new host", LIMIT, async || {
        let tcp = TcpStream::connect(process.address).await?;
        let connector = tls_client(&process.bundle().await, &TLS13);
        connector.connect("localhost".try_into().unwrap(), tcp).await.map(drop)
    })
    .await;
    eventually("the webhook to be called there", LIMIT, async || {
        try_asking(&process.client, &process.namespace).await.is_ok_and(|lamp| lamp.spec.watts == Some(40))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_empty_is_filled_and_one_that_is_deleted_comes_back() {
    let process = Process::start("secret", |webhook| webhook.defaulting::<Lamp>()).await;
    process.defaulted().await;
    let secrets: Api<Secret> = Api::namespaced(process.client.clone(), &process.namespace);
    let emptied = Patch::Merge(json!({"data": null}));
    secrets.patch("webhook-certs", &PatchParams::default(), &emptied).await.unwrap();
    eventually("the Secret to be filled", LIMIT, async || {
        secrets.get("webhook-certs").await.unwrap().data.is_some_and(|data| data.len() == 5)
    })
    .await;
    secrets.delete("webhook-certs", &Default::default()).await.unwrap();
    eventually("the Secret to come back", LIMIT, async || secrets.get("webhook-certs").await).await;
    eventually("requests to go through", LIMIT, async || {
        try_asking(&process.client, &process.namespace).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_writes_into_the_secret_is_mended() {
    let process = Process::start("damage", |webhook| webhook.defaulting::<Lamp>()).await;
    process.defaulted().await;
    let secrets: Api<Secret> = Api::namespaced(process.client.clone(), &process.namespace);
    let (ca, certificate, key) = certificate();
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
        let mended = eventually(format!("{name} to be mended of {text:?}"), LIMIT, async || {
            let data = process.secret().await.data.unwrap();
            (data[name].0 != text.as_bytes()).then_some(data).ok_or("it is as it was")
        });
        let certificate = CertificateDer::from_pem_slice(&mended.await["server-cert.pem"].0).unwrap();
        eventually(format!("the new certificate to be shown and trusted after {name}"), LIMIT, async || {
            match process.handshake().await {
                Ok(shown) if shown == certificate => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
    assert_eq!(process.asks().await.spec.watts, Some(40));
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
async fn a_config_map_that_cannot_be_read_is_refused_and_so_is_an_edited_example() {
    let process = Process::start("config", |webhook| webhook.config_validation::<Features>()).await;
    process.validated("config", "/config-validation").await;
    let maps: Api<ConfigMap> = Api::namespaced(process.client.clone(), &process.namespace);
    let example = "fast: true";
    let mut map = ConfigMap::default();
    map.metadata.name = Some("config-features".into());
    map.annotations_mut().insert(EXAMPLE_CHECKSUM_ANNOTATION.into(), example_checksum(example));
    map.data = Some(BTreeMap::from([("_example".into(), example.into())]));
    eventually("the map", LIMIT, async || maps.create(&PostParams::default(), &map).await).await;
    let refusal = async |data: Value| {
        let patch = Patch::Merge(json!({"data": data}));
        match maps.patch("config-features", &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) => status.message,
            other => format!("{other:?}"),
        }
    };
    let denied = format!("admission webhook \"config.webhook.{}\" denied the request: ", process.domain);
    eventually("a refusal in the parser's words", LIMIT, async || {
        let said = refusal(json!({"fast": "very"})).await;
        let expected = format!("{denied}validation failed: fast: neither true nor false");
        if said == expected { Ok(()) } else { Err(said) }
    })
    .await;
    let said = refusal(json!({"_example": "fast: false"})).await;
    let expected =
        "validation failed: the update modifies a key in \"_example\" which is probably not what you want.";
    assert!(said.starts_with(&format!("{denied}{expected}")), "{said}");
    let other = Patch::Merge(json!({"data": {"fast": "true"}}));
    maps.patch("config-features", &PatchParams::default(), &other).await.unwrap();
}

/// Certificates of twelve seconds, renewed after five.
fn rotating(webhook: Webhook) -> Webhook {
    webhook.defaulting::<Lamp>().certificates(Duration::from_secs(12), Duration::from_secs(7))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_certificates_are_rotated_every_five_seconds() {
    let process = Process::start("rotation", rotating).await;
    process.defaulted().await;
    let (failed, asked) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut requests = JoinSet::new();
    let (mut ticks, start) = (interval(Duration::from_millis(20)), Instant::now());
    let (mut shown, mut handshakes) = (Vec::<ByteString>::new(), 0);
    for tick in 0.. {
        if shown.len() == 4 {
            break;
        }
        assert!(start.elapsed() < LIMIT * 2, "{} certificates", shown.len());
        ticks.tick().await;
        let (client, namespace) = (process.client.clone(), process.namespace.clone());
        let (failed, asked) = (failed.clone(), asked.clone());
        requests.spawn(async move {
            let answer = try_asking(&client, &namespace).await;
            asked.fetch_add(1, Ordering::Relaxed);
            if !answer.as_ref().is_ok_and(|lamp| lamp.spec.watts == Some(40)) {
                println!("{answer:?}");
                failed.fetch_add(1, Ordering::Relaxed);
            }
        });
        // The API server keeps its connections: a client that makes a new one each time, and trusts what it trusts.
        if tick % 10 == 0 {
            let certificate = process.secret().await.data.unwrap()["server-cert.pem"].clone();
            if shown.last() != Some(&certificate) {
                shown.push(certificate);
            }
            process.handshake().await.unwrap();
            handshakes += 1;
        }
    }
    while let Some(done) = requests.join_next().await {
        done.unwrap();
    }
    let (failed, asked) = (failed.load(Ordering::Relaxed), asked.load(Ordering::Relaxed));
    println!(
        "{} certificates, {asked} requests, {handshakes} handshakes beside, {failed} failed",
        shown.len()
    );
    assert!(asked >= 200, "{asked} requests");
    assert_eq!(failed, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_stops_serving() {
    let limits = reknit_webhook::Limits { quiet: Duration::from_millis(200), ..Default::default() };
    let mut process = Process::start("ends", |webhook| webhook.defaulting::<Lamp>().limits(limits)).await;
    process.defaulted().await;
    process.stop.pull();
    while let Some(ended) = process.tasks.join_next().await {
        ended.unwrap();
    }
    assert!(TcpStream::connect(process.address).await.is_err());
}

/// kubectl, as the administrator.
pub(crate) fn kubectl(plane: &ControlPlane, arguments: &[&str]) -> (bool, String) {
    let mut kubectl =
        Command::new(PathBuf::from(std::env::var("KUBEBUILDER_ASSETS").unwrap()).join("kubectl"));
    let output = kubectl.arg("--kubeconfig").arg(plane.kubeconfig()).args(arguments).output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}
