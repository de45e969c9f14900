//! The deployed webhook: both parts of the program with their service accounts and the manifests of `config/`.

use std::{
    collections::BTreeMap,
    error::Error,
    fs::File,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command},
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
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use reknit::testing::{ControlPlane, eventually};
use reknit_samples::{AddressableService, AddressableServiceSpec};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

type TestResult<T = ()> = Result<T, Box<dyn Error>>;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config");
const SYSTEM_NAMESPACE: &str = "knative-samples";
const TIMEOUT: Duration = Duration::from_secs(60);

/// A process of the sample program, which is killed on drop.
pub(crate) struct Process {
    child: Child,
    log_file: PathBuf,
}

impl Process {
    /// Starts a part of the program as its service account in the system namespace.
    pub(crate) async fn start(plane: &ControlPlane, part: &str, name: &str) -> TestResult<Self> {
        let account = if part == "webhook" { "webhook" } else { "controller" };
        let access = plane.kubeconfig_as(SYSTEM_NAMESPACE, account).await?;
        let variables = BTreeMap::from([("SYSTEM_NAMESPACE".into(), SYSTEM_NAMESPACE.into())]);
        Ok(Self::start_with(&[format!("--only={part}")], &variables, &access, plane.folder(), name)?)
    }

    /// Starts the program with these arguments and environment variables.
    pub(crate) fn start_with(
        args: &[String],
        variables: &BTreeMap<String, String>,
        kubeconfig: &Path,
        folder: &Path,
        name: &str,
    ) -> io::Result<Self> {
        let log_file = folder.join(format!("{name}.log"));
        let file = File::create(&log_file)?;
        let child = Command::new(env!("CARGO_BIN_EXE_controller"))
            .args(args)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--bind-address", "127.0.0.1"])
            .envs(variables)
            .envs(
                ["KNATIVE_HEALTH_PROBES_PORT", "METRICS_PROMETHEUS_PORT", "PROFILING_PORT", "WEBHOOK_PORT"]
                    .map(|port| (port, "0")),
            )
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        Ok(Self { child, log_file })
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log_file).unwrap_or_default()
    }

    /// Returns true if the log has reported a change of leadership.
    fn has_led(&self) -> bool {
        self.log()
            .lines()
            .any(|line| line.contains("leadership changed") && line.contains("controller.webhook.00-of-"))
    }

    /// Returns true if the log has reported a write of the Secret or of a configuration.
    fn has_written(&self) -> bool {
        let log = self.log();
        ["updated the certificates of the webhook", "configured the API server to call and trust the webhook"]
            .iter()
            .any(|message| log.contains(message))
    }

    /// Waits for the address of the webhook in the log.
    async fn address(&self) -> String {
        eventually("the address of the webhook", TIMEOUT, async || {
            let log = self.log();
            let line = log.lines().find(|line| line.contains("listening for the webhook"));
            let line: Option<Value> = line.and_then(|line| serde_json::from_str(line).ok());
            line.and_then(|line| line["address"].as_str().map(str::to_owned)).ok_or(log)
        })
        .await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the API server call the webhook by `url`, since there is no Service network.
async fn point_at_url<K: Resource<DynamicType = ()>>(client: &Client, prefix: &str, url: String) {
    let configurations: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let name = format!("{prefix}.webhook.samples.knative.dev");
    // The webhook writes the same configuration, so this is retried on a conflict.
    eventually(format!("{name} with {url}"), TIMEOUT, async || {
        let mut configuration = configurations.get(&name).await?;
        configuration.data["webhooks"][0]["clientConfig"] = json!({"url": url});
        configurations.replace(&name, &PostParams::default(), &configuration).await
    })
    .await;
}

/// Waits until the webhook has filled in the rules, the path of the Service and the CA bundle of its configuration.
pub(crate) async fn wait_until_configured<K: Resource<DynamicType = ()>>(
    client: &Client,
    prefix: &str,
    path: &str,
) {
    let configurations: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let name = format!("{prefix}.webhook.samples.knative.dev");
    eventually(format!("{name} with {path}"), TIMEOUT, async || {
        let data = secrets.get("webhook-certs").await.map_err(|error| error.to_string())?.data;
        let bundle = data.and_then(|mut data| data.remove("ca-cert.pem"));
        let entry = configurations.get(&name).await.map_err(|error| error.to_string())?.data["webhooks"][0].take();
        let expected = json!({
            "service": {"name": "webhook", "namespace": SYSTEM_NAMESPACE, "port": 443, "path": path}, "caBundle": bundle,
        });
        let is_filled = bundle.is_some() && entry["clientConfig"] == expected && entry["rules"].is_array();
        if is_filled { Ok(()) } else { Err(format!("{entry}")) }
    })
    .await;
}

/// Returns the message of an API error, or else the debug output of the response.
pub(crate) fn refusal<T: std::fmt::Debug>(response: kube::Result<T>) -> String {
    match response {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => format!("{other:?}"),
    }
}

/// Applies `config/`, and starts both parts of the program. Returns the webhook, and the controllers.
async fn deploy(plane: &ControlPlane) -> TestResult<(Client, Process, Process)> {
    plane.apply_path(CONFIG).await?;
    let webhook = Process::start(plane, "webhook", "webhook").await?;
    Ok((plane.client()?, webhook, Process::start(plane, "controllers", "controller").await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_validates_and_defaults_with_its_rbac_rules() -> TestResult {
    let plane = ControlPlane::start().await?;
    let (client, webhook, _controllers) = deploy(&plane).await?;
    let address = webhook.address().await;
    // The applied configurations refer to the Service. The webhook keeps the reference, and adds path and CA bundle.
    wait_until_configured::<MutatingWebhookConfiguration>(&client, "defaulting", "/defaulting").await;
    wait_until_configured::<ValidatingWebhookConfiguration>(&client, "validation", "/resource-validation")
        .await;
    wait_until_configured::<ValidatingWebhookConfiguration>(&client, "config", "/config-validation").await;
    let url = |path: &str| format!("https://{address}{path}");
    point_at_url::<MutatingWebhookConfiguration>(&client, "defaulting", url("/defaulting")).await;
    point_at_url::<ValidatingWebhookConfiguration>(&client, "validation", url("/resource-validation")).await;
    point_at_url::<ValidatingWebhookConfiguration>(&client, "config", url("/config-validation")).await;

    let services: Api<AddressableService> =
        Api::namespaced(client.clone(), &plane.namespace("webhook").await?);
    let naming =
        |service: &str| AddressableService::new("x", AddressableServiceSpec { service_name: service.into() });
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let denial = |prefix: &str, reason: &str| {
        format!(
            "admission webhook \"{prefix}.webhook.samples.knative.dev\" denied the request: validation failed: {reason}"
        )
    };
    eventually("an object without a serviceName to be denied", TIMEOUT, async || {
        let message = refusal(services.create(&dry_run, &naming("")).await);
        let expected = denial("validation", "missing field(s): spec.serviceName");
        if message == expected { Ok(()) } else { Err(format!("{message}\n{}", webhook.log())) }
    })
    .await;
    let created = services.create(&PostParams::default(), &naming("web")).await?;
    assert_eq!(
        created.annotations()["samples.knative.dev/creator"],
        created.annotations()["samples.knative.dev/lastModifier"]
    );

    let maps: Api<ConfigMap> = Api::namespaced(client, SYSTEM_NAMESPACE);
    let edit = async |name: &str, key: &str, value: &str| {
        let patch = Patch::Merge(json!({"data": {key: value}}));
        maps.patch(name, &PatchParams { dry_run: true, ..PatchParams::default() }, &patch).await
    };
    eventually("a bad setting to be refused", TIMEOUT, async || {
        let message = refusal(edit("config-leader-election", "buckets", "11").await);
        let expected = denial("config", "buckets: value must be between 1 <= 11 <= 10");
        if message == expected { Ok(()) } else { Err(message) }
    })
    .await;
    assert_eq!(
        refusal(edit("config-logging", "loglevel.webhook", "loud").await),
        denial(
            "config",
            "loglevel.webhook: \"loud\" is not one of debug, info, warn, error, dpanic, panic, fatal"
        )
    );
    for (map, key, value) in [
        ("config-observability", "metrics-endpoint", "collector.observability:4317"),
        ("config-leader-election", "map-lease-prefix.controller.lamps", "Bad/Name"),
    ] {
        let message = refusal(edit(map, key, value).await);
        assert!(
            message.starts_with(&denial("config", "")) && message.contains(key) && message.contains(value),
            "{message}"
        );
    }
    let message = refusal(edit("config-observability", "_example", "nothing").await);
    assert!(message.starts_with(&denial("config", "the update modifies a key in \"_example\"")), "{message}");
    edit("config-logging", "loglevel.webhook", "debug").await?;
    Ok(())
}

/// Applies an AddressableService with kubectl, and returns its success and output.
fn kubectl_apply(plane: &ControlPlane, spec: &Value, arguments: &[&str]) -> io::Result<(bool, String)> {
    let manifest = json!({"apiVersion": "samples.knative.dev/v1alpha1", "kind": "AddressableService",
        "metadata": {"name": "applied", "namespace": "default"}, "spec": spec});
    let file = plane.folder().join("applied.json");
    std::fs::write(&file, manifest.to_string())?;
    let assets = std::env::var("KUBEBUILDER_ASSETS").unwrap_or_default();
    let mut kubectl = Command::new(Path::new(&assets).join("kubectl"));
    let kubectl = kubectl.arg("--kubeconfig").arg(plane.kubeconfig()).args(["apply", "-f"]).arg(file);
    let output = kubectl.args(arguments).output()?;
    let output_text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&output_text).into_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_the_faults_of_an_addressable_service_in_every_validation_mode() -> TestResult {
    let plane = ControlPlane::start().await?;
    let (client, webhook, _controllers) = deploy(&plane).await?;
    let address = webhook.address().await;
    let url = |path: &str| format!("https://{address}{path}");
    point_at_url::<MutatingWebhookConfiguration>(&client, "defaulting", url("/defaulting")).await;
    point_at_url::<ValidatingWebhookConfiguration>(&client, "validation", url("/resource-validation")).await;

    let (strict, warn, ignore) = ("--validate=strict", "--validate=warn", "--validate=false");
    let invalid = "The AddressableService \"applied\" is invalid: ";
    let without_service = format!("{invalid}spec.serviceName: Required value");
    for validate in [strict, warn, ignore] {
        eventually("an object without a serviceName to be denied", TIMEOUT, async || {
            let (succeeded, message) =
                kubectl_apply(&plane, &json!({"serviceName": ""}), &[validate, "--dry-run=server"])
                    .map_err(|error| error.to_string())?;
            if !succeeded && message.contains(&without_service) { Ok(()) } else { Err(message) }
        })
        .await;
        let (succeeded, message) = kubectl_apply(&plane, &json!({}), &[validate])?;
        assert!(!succeeded && message.contains(&without_service), "{message}");
        let (succeeded, message) = kubectl_apply(&plane, &json!({"serviceName": 1}), &[validate])?;
        let wrong_type =
            format!("{invalid}spec.serviceName: Invalid value: invalid type: integer `1`, expected a string");
        assert!(!succeeded && message.contains(&wrong_type), "{message}");
    }

    // The schema prunes unknown fields, unless kubectl asks the API server to refuse them.
    let misspelt = json!({"serviceName": "web", "serviceNmae": "x"});
    let unknown = "unknown field \"spec.serviceNmae\"";
    let (succeeded, message) = kubectl_apply(&plane, &misspelt, &[strict])?;
    assert!(!succeeded && message.contains(&format!("strict decoding error: {unknown}")), "{message}");
    let services: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), "default", &ApiResource::erase::<AddressableService>(&()));
    for (validate, has_warning) in [(warn, true), (ignore, false)] {
        let (succeeded, message) = kubectl_apply(&plane, &misspelt, &[validate])?;
        assert!(succeeded && message.contains(&format!("Warning: {unknown}")) == has_warning, "{message}");
        assert_eq!(services.get("applied").await?.data["spec"], json!({"serviceName": "web"}));
        services.delete("applied", &Default::default()).await?;
        eventually("the object to be gone", TIMEOUT, async || {
            let found = services.get_opt("applied").await.map_err(|error| error.to_string())?;
            found.map_or(Ok(()), |found| Err(format!("{:?}", found.metadata)))
        })
        .await;
    }

    // If the schema preserves unknown fields, the webhook refuses them.
    let definitions: Api<DynamicObject> =
        Api::all_with(client, &ApiResource::erase::<CustomResourceDefinition>(&()));
    let mut definition = definitions.get("addressableservices.samples.knative.dev").await?;
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let schema = definition.data.pointer_mut(schema).ok_or("no schema")?;
    schema["x-kubernetes-preserve-unknown-fields"] = true.into();
    let name = definition.name_any();
    definitions.replace(&name, &PostParams::default(), &definition).await?;
    for validate in [ignore, warn, strict] {
        eventually("the webhook to refuse the unknown field", TIMEOUT, async || {
            let (succeeded, message) = kubectl_apply(&plane, &misspelt, &[validate, "--dry-run=server"])
                .map_err(|error| error.to_string())?;
            let refused_field = format!("{invalid}spec.serviceNmae: Forbidden: unknown field");
            if !succeeded && message.contains(&refused_field) { Ok(()) } else { Err(message) }
        })
        .await;
    }
    Ok(())
}

/// Starts a proxy that forwards connections to the backends in turn, skipping those that do not listen.
async fn start_proxy(backends: Vec<String>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        for turn in 0.. {
            let Ok((mut client, _)) = listener.accept().await else { return };
            let mut order = backends.clone();
            order.rotate_left(turn % backends.len());
            tokio::spawn(async move {
                for backend in order {
                    if let Ok(mut server) = TcpStream::connect(&backend).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                        return;
                    }
                }
            });
        }
    });
    Ok(address)
}

/// The start and the error of each failed request.
type Failures = Arc<Mutex<Vec<(Instant, String)>>>;

/// Sends at most fifty requests a second until the returned tasks are dropped. Each of four clients waits for its last answer,
/// since requests beyond what a busy machine can answer would only queue up. `answered` counts all responses and errors.
fn send_load(
    services: &Api<AddressableService>,
    failures: &Failures,
    answered: &Arc<AtomicU32>,
) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let (services, failures, answered) = (services.clone(), failures.clone(), answered.clone());
        clients.spawn(async move {
            let mut ticks = interval(Duration::from_millis(80));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let dry_run = PostParams { dry_run: true, ..PostParams::default() };
            let spec = AddressableServiceSpec { service_name: "web".into() };
            let service = AddressableService::new("load", spec);
            loop {
                ticks.tick().await;
                let start = Instant::now();
                if let Err(error) = services.create(&dry_run, &service).await {
                    failures.lock().push((start, error.to_string()));
                }
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    clients
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_if_the_leader_is_killed_during_a_rotation() -> TestResult {
    let plane = ControlPlane::start().await?;
    plane.apply_path(CONFIG).await?;
    let client = plane.client()?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    // With one bucket, one replica leads and the other stands by.
    let election = json!({"data": {
        "lease-duration": "12s", "renew-deadline": "9s", "retry-period": "3s", "buckets": "1",
    }});
    maps.patch("config-leader-election", &PatchParams::default(), &Patch::Merge(election)).await?;
    let (mut replicas, mut webhooks) = (Vec::new(), Vec::new());
    for number in ["one", "two"] {
        replicas.push(Process::start(&plane, "controllers", number).await?);
        webhooks.push(Process::start(&plane, "webhook", &format!("webhook-{number}")).await?);
    }
    let backends = vec![webhooks[0].address().await, webhooks[1].address().await];
    let proxy = start_proxy(backends).await?;
    point_at_url::<MutatingWebhookConfiguration>(
        &client,
        "defaulting",
        format!("https://{proxy}/defaulting"),
    )
    .await;
    point_at_url::<ValidatingWebhookConfiguration>(
        &client,
        "validation",
        format!("https://{proxy}/resource-validation"),
    )
    .await;
    let services: Api<AddressableService> = Api::namespaced(client.clone(), "default");
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let without_service = AddressableService::new("x", AddressableServiceSpec::default());
    eventually("both webhooks to be called", TIMEOUT, async || {
        let created = services
            .create(
                &dry_run,
                &AddressableService::new("x", AddressableServiceSpec { service_name: "web".into() }),
            )
            .await;
        let defaulted =
            created.is_ok_and(|created| created.annotations().contains_key("samples.knative.dev/creator"));
        let refused = refusal(services.create(&dry_run, &without_service).await)
            .contains("missing field(s): spec.serviceName");
        defaulted && refused
    })
    .await;

    let (failures, answered) = (Failures::default(), Arc::new(AtomicU32::new(0)));
    let load = send_load(&services, &failures, &answered);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let before = server_certificate(&secrets).await?;
    // The certificate does not have the host of this URL, so the leader issues another certificate.
    point_at_url::<ValidatingWebhookConfiguration>(
        &client,
        "config",
        format!("https://localhost:{}/config-validation", proxy.port()),
    )
    .await;
    let leader = eventually("a leader", TIMEOUT, async || replicas.iter().position(Process::has_led)).await;
    assert!(
        replicas[leader].has_written() && !replicas[1 - leader].has_written(),
        "the leader did not write, or the other replica wrote"
    );
    let serves_secret =
        |webhook: &Process| webhook.log().contains("serving the certificate of the webhook's Secret");
    assert!(webhooks.iter().all(serves_secret), "a webhook does not serve the certificate of the Secret");
    assert!(!webhooks.iter().any(Process::has_written), "a webhook wrote");
    drop(replicas.remove(leader));
    let killed = Instant::now();
    eventually("a new certificate, and the other replica to lead", TIMEOUT, async || {
        let now = server_certificate(&secrets).await.map_err(|error| error.to_string())?;
        if now != before && replicas[0].has_led() { Ok(()) } else { Err(replicas[0].log()) }
    })
    .await;
    let enough = answered.load(Ordering::Relaxed) + 100;
    eventually("a hundred more requests to be answered", TIMEOUT, async || {
        answered.load(Ordering::Relaxed) >= enough
    })
    .await;
    drop(load);
    let (failures, answered) = (failures.lock().clone(), answered.load(Ordering::Relaxed));
    println!(
        "{answered} requests, {} failed, leader killed {:?} ago: {failures:?}",
        failures.len(),
        killed.elapsed()
    );
    // The leader serves no requests.
    assert_eq!(failures, []);
    Ok(())
}

async fn server_certificate(secrets: &Api<Secret>) -> kube::Result<Option<ByteString>> {
    Ok(secrets.get("webhook-certs").await?.data.and_then(|mut data| data.remove("server-cert.pem")))
}
