//! The manifests of `config/` and `overlays/`, applied with kubectl.

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{Namespace, Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use reknit::testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use crate::webhook::{Process, wait_until_configured};

pub(crate) type TestResult<T = ()> = Result<T, Box<dyn Error>>;

pub(crate) const SYSTEM_NAMESPACE: &str = "knative-samples";
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs kubectl in the root of the repository, and returns what it printed.
pub(crate) fn kubectl(plane: &ControlPlane, arguments: &[&str]) -> TestResult<String> {
    let assets = std::env::var("KUBEBUILDER_ASSETS").unwrap_or_default();
    let mut command = Command::new(Path::new(&assets).join("kubectl"));
    command.arg("--kubeconfig").arg(plane.kubeconfig()).args(arguments).current_dir(root());
    let output = command.output()?;
    let printed = String::from_utf8([output.stdout, output.stderr].concat())?;
    if output.status.success() { Ok(printed) } else { Err(format!("{arguments:?}: {printed}").into()) }
}

/// Runs `kubectl kustomize`, and returns the objects.
pub(crate) fn kustomize(plane: &ControlPlane, folder: &str) -> TestResult<Vec<DynamicObject>> {
    objects(&kubectl(plane, &["kustomize", folder])?)
}

pub(crate) fn objects(yaml: &str) -> TestResult<Vec<DynamicObject>> {
    Ok(serde_saphyr::from_multiple(yaml)?)
}

/// Writes a kustomization that has `config/` as its resource, and returns its folder.
pub(crate) fn layer(plane: &ControlPlane, name: &str, settings: &str) -> TestResult<String> {
    let folder = plane.folder().join(name);
    fs::create_dir(&folder)?;
    // A resource has to be a relative path.
    std::os::unix::fs::symlink(root().canonicalize()?.join("config"), plane.folder().join("config"))?;
    fs::write(folder.join("kustomization.yaml"), format!("resources: [../config]\n{settings}"))?;
    Ok(folder.to_string_lossy().into_owned())
}

/// The kind, name and content of each object.
pub(crate) fn by_name(objects: Vec<DynamicObject>) -> TestResult<BTreeMap<String, serde_json::Value>> {
    let named = objects.into_iter().map(|object| {
        let kind = object.types.as_ref().map(|types| types.kind.clone()).unwrap_or_default();
        let name = object.metadata.name.clone().unwrap_or_default();
        Ok((format!("{kind} {name}"), serde_json::to_value(object)?))
    });
    named.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn config_is_the_same_with_and_without_kustomize() -> TestResult {
    let plane = ControlPlane::shared().await?;
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join("config"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            files.append(&mut objects(&fs::read_to_string(path)?)?);
        }
    }
    let (files, rendered) = (by_name(files)?, by_name(kustomize(plane, "config")?)?);
    assert!(files.keys().eq(rendered.keys()), "{:?}, {:?}", files.keys(), rendered.keys());
    // Kustomize prints the number 0.0 of a schema as 0.
    for (name, object) in files.iter().filter(|(name, _)| !name.starts_with("CustomResourceDefinition")) {
        assert_eq!(object, &rendered[name], "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_config_again_changes_nothing_and_never_conflicts_with_the_controller() -> TestResult {
    let plane = ControlPlane::start().await?;
    kubectl(&plane, &["apply", "-f", "config/"])?;
    let _controllers = Process::start(&plane, "controllers", "controller").await?;
    let client = plane.client()?;
    wait_until_configured::<MutatingWebhookConfiguration>(&client, "defaulting", "/defaulting").await;
    for (name, path) in [("validation", "/resource-validation"), ("config", "/config-validation")] {
        wait_until_configured::<ValidatingWebhookConfiguration>(&client, name, path).await;
    }
    // There is no network for Services, so that the API server cannot call the webhook about a ConfigMap.
    kubectl(&plane, &["label", "namespace", SYSTEM_NAMESPACE, "webhooks.knative.dev/exclude=true"])?;

    for folder in [["-k", "config/"], ["-f", "config/"]] {
        let printed = kubectl(&plane, &["apply", folder[0], folder[1]])?;
        // kubectl always reports a PodDisruptionBudget as configured: its selector has the patch strategy "replace".
        let is_changed =
            |line: &&str| !line.ends_with(" unchanged") && !line.starts_with("poddisruptionbudget");
        let changed: Vec<&str> = printed.lines().filter(is_changed).collect();
        assert_eq!(changed, [""; 0], "{folder:?}");
    }
    for _ in ["the first apply takes the fields over", "the second changes nothing"] {
        kubectl(&plane, &["apply", "--server-side", "-k", "config/"])?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kustomization_sets_the_namespace_and_the_image_everywhere() -> TestResult {
    let plane = ControlPlane::start().await?;
    let folder = layer(
        &plane,
        "layer",
        "namespace: elsewhere\n\
         images: [{name: registry.example.com/reknit/sample-controller, newName: example.org/mine, newTag: v1}]\n",
    )?;
    let rendered = kubectl(&plane, &["kustomize", &folder])?;
    let left: Vec<&str> = rendered.lines().filter(|line| is_namespace_of_config(line)).collect();
    assert_eq!(left, [""; 0]);
    assert_eq!(rendered.matches("image: example.org/mine:v1").count(), 2, "{rendered}");
    kubectl(&plane, &["apply", "-k", &folder])?;

    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(plane.client()?);
    let configuration = configurations.get("config.webhook.samples.knative.dev").await?;
    let webhook = configuration.webhooks.unwrap_or_default().pop().ok_or("no webhook")?;
    let selected = webhook.namespace_selector.and_then(|selector| selector.match_labels).unwrap_or_default();
    assert_eq!(selected.get("kubernetes.io/metadata.name").map(String::as_str), Some("elsewhere"));
    assert_eq!(webhook.client_config.service.map(|service| service.namespace).as_deref(), Some("elsewhere"));
    Ok(())
}

/// The names that the rights of a Role or a ClusterRole, and the environment of a Deployment, refer to.
fn referred_names(object: &Value) -> Vec<String> {
    let rules = object["rules"].as_array().into_iter().flatten();
    let of_rules = rules.flat_map(|rule| rule["resourceNames"].as_array().into_iter().flatten());
    let variables = object.pointer("/spec/template/spec/containers/0/env").and_then(Value::as_array);
    let is_name = |variable: &&Value| {
        let name = variable["name"].as_str().unwrap_or_default();
        name.ends_with("_NAME")
            || name.starts_with("WEBHOOK_CONFIGURATION_")
            || name == "LEADERELECTION_COMPONENT"
    };
    let of_variables = variables.into_iter().flatten().filter(is_name).map(|variable| &variable["value"]);
    of_rules.chain(of_variables).filter_map(|name| Some(name.as_str()?.to_owned())).collect()
}

/// A running part of a release, with its environment variables.
pub(crate) struct Part {
    process: Process,
    variables: BTreeMap<String, String>,
}

/// The program that a Deployment runs, in a namespace.
pub(crate) struct Deployed {
    pub(crate) args: Vec<String>,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) account: String,
}

impl Deployed {
    /// Reads the Deployment whose name contains this one.
    pub(crate) fn read(objects: &BTreeMap<String, Value>, namespace: &str, name: &str) -> TestResult<Self> {
        let mut deployments = objects.iter().filter(|(key, _)| key.starts_with("Deployment "));
        let (_, deployment) = deployments.find(|(key, _)| key.contains(name)).ok_or("no Deployment")?;
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let args = container["args"].as_array().into_iter().flatten();
        let variables = container["env"].as_array().into_iter().flatten();
        let variables = variables.filter_map(|variable| {
            Some((variable["name"].as_str()?.to_owned(), variable["value"].as_str()?.to_owned()))
        });
        let mut variables: BTreeMap<String, String> = variables.collect();
        variables.insert("SYSTEM_NAMESPACE".into(), namespace.into());
        Ok(Self {
            args: args.filter_map(|arg| Some(arg.as_str()?.to_owned())).collect(),
            variables,
            account: pod["serviceAccountName"].as_str().ok_or("no service account")?.to_owned(),
        })
    }
}

/// Starts a part of a release as its Deployment would.
pub(crate) async fn start_part(
    plane: &ControlPlane,
    objects: &BTreeMap<String, Value>,
    namespace: &str,
    name: &str,
) -> TestResult<Part> {
    let Deployed { args, variables, account } = Deployed::read(objects, namespace, name)?;
    let access = plane.kubeconfig_as(namespace, &account).await?;
    let log = format!("{namespace}-{name}");
    let process = Process::start_with(&args, &variables, &access, plane.folder(), &log)?;
    Ok(Part { process, variables })
}

/// Waits until the controllers hold a Lease of their component.
async fn wait_for_lease(plane: &ControlPlane, namespace: &str, controllers: &Part) -> TestResult {
    let leases: Api<Lease> = Api::namespaced(plane.client()?, namespace);
    let prefix = format!("{}.", controllers.variables["LEADERELECTION_COMPONENT"]);
    eventually(format!("a Lease {prefix}* with a holder"), TIMEOUT, async || {
        let leases = leases.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let is_held = |lease: &Lease| lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.is_some());
        let is_led = |name: String| name.starts_with(&prefix) && name.contains("-of-");
        match leases.iter().any(|lease| is_led(lease.name_any()) && is_held(lease)) {
            true => Ok(()),
            false => Err(controllers.process.log()),
        }
    })
    .await;
    Ok(())
}

/// Starts both parts of a release, and waits until the controllers lead, until the webhook serves the certificate, and
/// until the webhook configurations trust it and belong to the namespace.
async fn run_release(plane: &ControlPlane, rendered: &str, namespace: &str) -> TestResult<[Process; 2]> {
    let objects = by_name(objects(rendered)?)?;
    let names: Vec<&str> = objects.keys().filter_map(|key| Some(key.split_once(' ')?.1)).collect();
    for name in objects.values().flat_map(referred_names) {
        assert!(names.contains(&&*name), "{name} is no object of this release");
    }
    let controller = start_part(plane, &objects, namespace, "controller").await?;
    let webhook = start_part(plane, &objects, namespace, "webhook").await?;
    wait_for_lease(plane, namespace, &controller).await?;
    eventually("the webhook to serve the certificate", TIMEOUT, async || {
        let log = webhook.process.log();
        if log.contains("serving the certificate of the webhook's Secret") { Ok(()) } else { Err(log) }
    })
    .await;

    let client = plane.client()?;
    let uid = Api::<Namespace>::all(client.clone()).get(namespace).await?.metadata.uid;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    for key in objects.keys().filter(|key| key.contains("WebhookConfiguration ")) {
        let (kind, name) = key.split_once(' ').ok_or("no name")?;
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let configurations: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
        eventually(format!("{name} to be configured and owned"), TIMEOUT, async || {
            let secret = &webhook.variables["WEBHOOK_SECRET_NAME"];
            let secret = secrets.get(secret).await.map_err(|e| e.to_string())?;
            let bundle = json!(secret.data.unwrap_or_default().get("ca-cert.pem"));
            let configuration = configurations.get(name).await.map_err(|e| e.to_string())?;
            let owners = configuration.metadata.owner_references.unwrap_or_default();
            let is_owned = owners.iter().any(|owner| Some(&owner.uid) == uid.as_ref());
            let entry = &configuration.data["webhooks"][0];
            let is_configured = entry["rules"].is_array() && entry["clientConfig"]["caBundle"] == bundle;
            if is_owned && is_configured { Ok(()) } else { Err(format!("{owners:?} {entry}")) }
        })
        .await;
    }
    for part in [&controller, &webhook] {
        let log = part.process.log();
        assert!(!log.contains("forbidden") && !log.contains("ConfigMap does not exist"), "{log}");
    }
    Ok([controller.process, webhook.process])
}

#[tokio::test(flavor = "multi_thread")]
async fn two_releases_with_names_of_their_own_run_side_by_side() -> TestResult {
    let plane = ControlPlane::start().await?;
    let settings = "namespace: elsewhere\nnamePrefix: my-\nnameSuffix: -dev\n";
    let folder = layer(&plane, "layer", settings)?;
    kubectl(&plane, &["apply", "-k", "config"])?;
    kubectl(&plane, &["apply", "-k", &folder])?;
    let _first = run_release(&plane, &kubectl(&plane, &["kustomize", "config"])?, SYSTEM_NAMESPACE).await?;
    let _second = run_release(&plane, &kubectl(&plane, &["kustomize", &folder])?, "elsewhere").await?;

    // The deletion of a namespace deletes the webhook configurations of its release, and no other.
    plane.nodes(1).await?;
    let client = plane.client()?;
    Api::<Namespace>::all(client.clone()).delete("elsewhere", &DeleteParams::default()).await?;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let names = async || -> kube::Result<Vec<String>> {
        let mutating = mutating.list_metadata(&ListParams::default()).await?.items;
        let validating = validating.list_metadata(&ListParams::default()).await?.items;
        Ok(mutating.iter().map(|m| m.name_any()).chain(validating.iter().map(|v| v.name_any())).collect())
    };
    eventually("the configurations of the deleted release to be gone", TIMEOUT, async || {
        let names = names().await.map_err(|error| error.to_string())?;
        if names.iter().any(|name| name.starts_with("my-")) { Err(names.join(", ")) } else { Ok(()) }
    })
    .await;
    assert_eq!(names().await?.len(), 3);
    Ok(())
}

/// The namespace controller deletes what a namespace contains in no fixed order, so the Service may go first.
#[tokio::test(flavor = "multi_thread")]
async fn objects_and_their_namespace_are_deleted_without_the_service_of_the_webhook() -> TestResult {
    let plane = ControlPlane::start().await?;
    let folder = layer(&plane, "layer", "namespace: elsewhere\n")?;
    kubectl(&plane, &["apply", "-k", &folder])?;
    let objects = by_name(objects(&kubectl(&plane, &["kustomize", &folder])?)?)?;
    let client = plane.client()?;
    let controllers = start_part(&plane, &objects, "elsewhere", "controller").await?;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let name = "validation.webhook.samples.knative.dev";
    eventually("the configuration to be filled in and owned", TIMEOUT, async || {
        let configuration = configurations.get(name).await.map_err(|error| error.to_string())?;
        let is_filled_in = json!(configuration).pointer("/webhooks/0/rules").is_some();
        let is_owned = configuration.metadata.owner_references.is_some();
        if is_filled_in && is_owned { Ok(()) } else { Err(format!("{configuration:?}")) }
    })
    .await;
    // A controller would add its finalizer.
    drop(controllers);
    let exclude = |value| kubectl(&plane, &["label", "namespace", "elsewhere", value]);
    exclude("webhooks.knative.dev/exclude=true")?;
    for name in ["first", "second"] {
        let object = ADDRESSABLE.replace("NAME", name);
        eventually("an object without the webhook", TIMEOUT, async || plane.apply_yaml(&object).await).await;
    }
    exclude("webhooks.knative.dev/exclude-")?;
    let delete = |arguments: &[&str]| kubectl(&plane, &[&["delete", "-n", "elsewhere"], arguments].concat());
    delete(&["service", "webhook"])?;
    eventually("a call of the webhook to fail", TIMEOUT, async || {
        let patch = r#"{"spec": {"serviceName": "b"}}"#;
        let arguments =
            ["patch", "-n", "elsewhere", "asvc", "first", "--type=merge", "-p", patch, "--dry-run=server"];
        match kubectl(&plane, &arguments) {
            Err(error) if error.to_string().contains("failed calling webhook") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    delete(&["asvc", "first"])?;

    plane.nodes(1).await?;
    let namespaces: Api<Namespace> = Api::all(client);
    namespaces.delete("elsewhere", &DeleteParams::default()).await?;
    eventually("the namespace and the configuration to be gone", TIMEOUT, async || {
        let namespace = namespaces.get_opt("elsewhere").await.map_err(|error| error.to_string())?;
        let configuration = configurations.get_opt(name).await.map_err(|error| error.to_string())?;
        if namespace.is_none() && configuration.is_none() { Ok(()) } else { Err(format!("{namespace:?}")) }
    })
    .await;
    Ok(())
}

const ADDRESSABLE: &str = "{apiVersion: samples.knative.dev/v1alpha1, kind: AddressableService,
  metadata: {name: NAME, namespace: elsewhere}, spec: {serviceName: a}}";

/// Returns true if the value in this line of YAML is the namespace of `config/`, and not an application's equal name.
fn is_namespace_of_config(line: &str) -> bool {
    line.trim_end().ends_with(": knative-samples") && !line.contains("app.kubernetes.io/name:")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_overlay_is_accepted_by_the_api_server() -> TestResult {
    let plane = ControlPlane::start().await?;
    kubectl(&plane, &["create", "namespace", "team-a"])?;
    // The Prometheus operator is not installed here.
    for (kind, plural) in [("ServiceMonitor", "servicemonitors"), ("PrometheusRule", "prometheusrules")] {
        plane.apply_yaml(&definition_of_the_operator(kind, plural)).await?;
    }
    for overlay in ["development", "egress", "one-namespace", "monitoring"] {
        kubectl(&plane, &["apply", "--validate=strict", "-k", &format!("overlays/{overlay}")])?;
    }
    Ok(())
}

fn definition_of_the_operator(kind: &str, plural: &str) -> String {
    let definition = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition,
  metadata: {name: PLURAL.monitoring.coreos.com}, spec: {group: monitoring.coreos.com, scope: Namespaced,
  names: {kind: KIND, plural: PLURAL}, versions: [{name: v1, served: true, storage: true,
  schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}";
    definition.replace("KIND", kind).replace("PLURAL", plural)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overlay_for_development_has_no_webhook_and_one_replica() -> TestResult {
    let objects = by_name(kustomize(ControlPlane::shared().await?, "overlays/development")?)?;
    let about_the_webhook: Vec<_> =
        objects.keys().filter(|name| name.to_lowercase().contains("webhook")).collect();
    assert_eq!(about_the_webhook, [""; 0]);
    assert_eq!(objects["Deployment controller"]["spec"]["replicas"], 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_the_pods_are_refused_by_default() -> TestResult {
    let objects = by_name(kustomize(ControlPlane::shared().await?, "config")?)?;
    let denied = objects["NetworkPolicy default-deny"]["spec"].clone();
    assert_eq!((&denied["policyTypes"], &denied["ingress"]), (&json!(["Ingress"]), &Value::Null));
    let selected = denied["podSelector"]["matchLabels"].as_object().ok_or("no labels")?;
    for (name, deployment) in objects.iter().filter(|(name, _)| name.starts_with("Deployment ")) {
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        assert!(selected.iter().all(|(key, value)| labels[key] == *value), "{name}: {labels}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overlay_for_one_namespace_grants_the_controller_only_registration_beyond_it() -> TestResult {
    let objects = by_name(kustomize(ControlPlane::shared().await?, "overlays/one-namespace")?)?;
    let cluster_roles = objects.iter().filter(|(name, _)| name.starts_with("ClusterRole "));
    let rules = cluster_roles.flat_map(|(_, role)| role["rules"].as_array().into_iter().flatten());
    let is_review = |rule: &Value| {
        rule["verbs"] == json!(["create"]) && rule["resources"][0].to_string().contains("reviews")
    };
    for rule in rules.filter(|rule| !is_review(rule) && rule["nonResourceURLs"].is_null()) {
        assert!(rule["resourceNames"].is_array(), "{rule}");
    }
    assert_eq!(objects["Role knative-samples-controller"]["metadata"]["namespace"], "team-a");
    let args = &objects["Deployment controller"]["spec"]["template"]["spec"]["containers"][0]["args"];
    assert_eq!(*args, json!(["--only=controllers", "--metrics-secure", "--namespace=team-a"]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_are_admitted_where_restricted_pod_security_is_enforced() -> TestResult {
    let plane = ControlPlane::start().await?;
    plane.apply_path(root().join("config")).await?;
    let pods: Api<Pod> = Api::namespaced(plane.client()?, SYSTEM_NAMESPACE);
    let deployments: Api<Deployment> = Api::namespaced(plane.client()?, SYSTEM_NAMESPACE);
    for name in ["controller", "webhook"] {
        let template = deployments.get(name).await?.spec.ok_or("no spec")?.template;
        let metadata = ObjectMeta { name: Some(name.into()), ..template.metadata.unwrap_or_default() };
        let pod = Pod { metadata, spec: template.spec, status: None };
        pods.create(&PostParams::default(), &pod).await?;

        let mut privileged = pod;
        privileged.metadata.name = Some(format!("{name}-privileged"));
        let spec = privileged.spec.as_mut().ok_or("no spec")?;
        spec.security_context = None;
        let refused =
            pods.create(&PostParams::default(), &privileged).await.err().ok_or("it was admitted")?;
        assert!(refused.to_string().contains("violates PodSecurity \"restricted:latest\""), "{refused}");
    }
    Ok(())
}
