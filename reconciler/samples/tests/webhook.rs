//! The webhook as it is deployed: its binary, as its service account, with what `config/` applies.

use std::{
    error::Error,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::ConfigMap,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use reknit::testing::{ControlPlane, eventually};
use samples_apis::{AddressableService, AddressableServiceSpec};
use serde_json::{Value, json};

type Tested<T = ()> = Result<T, Box<dyn Error>>;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config");
const SYSTEM: &str = "knative-samples";
const LIMIT: Duration = Duration::from_secs(60);

/// The process, which ends with the test.
struct Webhook {
    child: Child,
    log: PathBuf,
}

impl Webhook {
    fn start(kubeconfig: &Path, folder: &Path) -> io::Result<Self> {
        let log = folder.join("webhook.log");
        let file = File::create(&log)?;
        let child = Command::new(env!("CARGO_BIN_EXE_webhook"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--bind-address", "127.0.0.1"])
            .env("SYSTEM_NAMESPACE", SYSTEM)
            .envs(
                ["KNATIVE_HEALTH_PROBES_PORT", "METRICS_PROMETHEUS_PORT", "PROFILING_PORT", "WEBHOOK_PORT"]
                    .map(|port| (port, "0")),
            )
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        Ok(Self { child, log })
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where it listens, once it says so.
    async fn address(&self) -> String {
        eventually("the address of the webhook", LIMIT, async || {
            let said = self.said();
            let line = said.lines().find(|line| line.contains("listening for the webhook"));
            let line: Option<Value> = line.and_then(|line| serde_json::from_str(line).ok());
            line.and_then(|line| line["address"].as_str().map(str::to_owned)).ok_or(said)
        })
        .await
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has the API server call it at its address: there is no Service network here.
async fn call<K: Resource<DynamicType = ()>>(client: &Client, what: &str, url: String) {
    let configurations: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let name = format!("{what}.webhook.samples.knative.dev");
    // The webhook fills it in meanwhile.
    eventually(format!("{name} with {url}"), LIMIT, async || {
        let mut configuration = configurations.get(&name).await?;
        configuration.data["webhooks"][0]["clientConfig"] = json!({"url": url});
        configurations.replace(&name, &PostParams::default(), &configuration).await
    })
    .await;
}

fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> String {
    match answer {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => format!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_of_the_samples_refuses_and_completes_with_the_rights_it_is_given() -> Tested {
    let plane = ControlPlane::shared().await?;
    plane.apply_path(CONFIG).await?;
    let client = plane.client()?;
    let webhook = Webhook::start(&plane.kubeconfig_as(SYSTEM, "webhook").await?, plane.folder())?;
    let address = webhook.address().await;
    let url = |path: &str| format!("https://{address}{path}");
    call::<MutatingWebhookConfiguration>(&client, "defaulting", url("/defaulting")).await;
    call::<ValidatingWebhookConfiguration>(&client, "validation", url("/resource-validation")).await;
    call::<ValidatingWebhookConfiguration>(&client, "config", url("/config-validation")).await;

    let services: Api<AddressableService> =
        Api::namespaced(client.clone(), &plane.namespace("webhook").await?);
    let of =
        |service: &str| AddressableService::new("x", AddressableServiceSpec { service_name: service.into() });
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let denied = |what: &str, why: &str| {
        format!(
            "admission webhook \"{what}.webhook.samples.knative.dev\" denied the request: validation failed: {why}"
        )
    };
    eventually("a nameless one to be refused", LIMIT, async || {
        let said = refusal(services.create(&dry, &of("")).await);
        let expected = denied("validation", "missing field(s): spec.serviceName");
        if said == expected { Ok(()) } else { Err(format!("{said}\n{}", webhook.said())) }
    })
    .await;
    let made = services.create(&PostParams::default(), &of("web")).await?;
    assert_eq!(
        made.annotations()["samples.knative.dev/creator"],
        made.annotations()["samples.knative.dev/lastModifier"]
    );

    let maps: Api<ConfigMap> = Api::namespaced(client, SYSTEM);
    let edit = async |name: &str, key: &str, value: &str| {
        let patch = Patch::Merge(json!({"data": {key: value}}));
        maps.patch(name, &PatchParams { dry_run: true, ..PatchParams::default() }, &patch).await
    };
    eventually("a bad setting to be refused", LIMIT, async || {
        let said = refusal(edit("config-leader-election", "buckets", "11").await);
        let expected = denied("config", "buckets: value must be between 1 <= 11 <= 10");
        if said == expected { Ok(()) } else { Err(said) }
    })
    .await;
    assert_eq!(
        refusal(edit("config-logging", "loglevel.webhook", "loud").await),
        denied(
            "config",
            "loglevel.webhook: \"loud\" is not one of debug, info, warn, error, dpanic, panic, fatal"
        )
    );
    let said = refusal(edit("config-observability", "_example", "nothing").await);
    assert!(said.starts_with(&denied("config", "the update modifies a key in \"_example\"")), "{said}");
    edit("config-logging", "loglevel.webhook", "debug").await?;
    Ok(())
}
