//! A binding on a real API server with nodes: its controller, its webhook, and the pods of its subjects.

use std::time::Duration;

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Namespace, Pod, PodSpec},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use reknit_apis::DuckStatus;
use reknit_injection::{Context, Shutdown, ShutdownTrigger};
use reknit_reconciler::{
    Binder, Controller, FinalizeKind, Kinds, Outcome, ReconcileKind, Result, Run, leader::Leadership,
};
use reknit_testing::{ControlPlane, eventually};
use reknit_webhook::{BindingSelection, Webhook};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{paint::Paint, process::Process};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The controller of the bindings.
struct Painter(Binder<Paint>);

impl ReconcileKind for Painter {
    type Kind = Paint;
    async fn reconcile_kind(&self, paint: &Paint, status: &mut DuckStatus) -> Result<Outcome> {
        self.0.bind(paint, status).await?;
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Painter {
    async fn finalize_kind(&self, paint: &Paint, _: &mut DuckStatus) -> Result<Outcome> {
        self.0.unbind(paint).await?;
        Ok(Outcome::done())
    }
}

/// Runs the controller until the trigger is dropped.
fn run_controller(client: &Client) -> ShutdownTrigger {
    let (stop, shutdown) = Shutdown::new();
    let (controller, informers) = {
        let cx = Context::new("painter", client.clone());
        let mut build = Controller::of::<Paint>(&cx);
        let binder = build.binder(Kinds::any());
        (build.reconciler(Painter(binder)).finalizing().build(), cx.informers())
    };
    informers.start();
    let run = Run { leadership: Leadership::always(), stop: shutdown, drain: Duration::ZERO, workers: None };
    tokio::spawn(async move { controller.run(run).await });
    stop
}

/// A namespace with the controller of the bindings.
struct Fixture {
    plane: &'static ControlPlane,
    client: Client,
    namespace: String,
    _controller: ShutdownTrigger,
}

impl Fixture {
    async fn new() -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        plane.install::<Paint>().await.unwrap();
        plane.nodes(1).await.unwrap();
        let (client, namespace) = (plane.client().unwrap(), plane.namespace("binding").await.unwrap());
        let controller = run_controller(&client);
        Self { plane, client, namespace, _controller: controller }
    }

    fn api<K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create<K>(&self, object: Value) -> K
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + DeserializeOwned,
    {
        let object = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Waits until the deployment has pods, and all have this color.
    async fn wait_for_pods(&self, deployment: &str, expected: Option<&str>) {
        let pods = self.api::<Pod>();
        let app = ListParams::default().labels(&format!("app={deployment}"));
        eventually(&format!("pods of {deployment} with {expected:?}"), TIMEOUT, async || {
            let pods = pods.list(&app).await.ok()?.items;
            let is_expected = |pod: &Pod| color(pod.spec.as_ref()) == expected.map(str::to_owned);
            (!pods.is_empty() && pods.iter().all(is_expected)).then_some(())
        })
        .await;
    }

    async fn wait_for_condition(&self, status: &str) {
        let paints = self.api::<Paint>();
        eventually("the condition", TIMEOUT, async || {
            let found = paints.get("blue").await.ok()?.status?;
            (found.condition("Ready")?.status == *status).then_some(())
        })
        .await;
    }
}

/// The color of the only container.
fn color(spec: Option<&PodSpec>) -> Option<String> {
    let variables = spec?.containers[0].env.iter().flatten();
    variables.filter(|variable| variable.name == "COLOR").find_map(|variable| variable.value.clone())
}

fn deployment_color(deployment: &Deployment) -> Option<String> {
    color(deployment.spec.as_ref()?.template.spec.as_ref())
}

fn pod_template(app: &str) -> Value {
    let spec = json!({"containers": [{"name": "main", "image": "i"}], "terminationGracePeriodSeconds": 0});
    json!({"metadata": {"labels": {"app": app}}, "spec": spec})
}

fn deployment(name: &str) -> Value {
    let spec =
        json!({"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": pod_template(name)});
    json!({"metadata": {"name": name, "labels": {"tier": "front"}}, "spec": spec})
}

fn paint(name: &str, kind: &str, api_version: &str) -> Value {
    let subject =
        json!({"apiVersion": api_version, "kind": kind, "selector": {"matchLabels": {"tier": "front"}}});
    json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Paint", "metadata": {"name": name}, "spec": {"color": name, "subject": subject}})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_subjects_get_the_injection_and_lose_it_with_the_binding() {
    let fixture = Fixture::new().await;
    let webhook = Webhook::new("bindings.reknit.dev").binding::<Paint>();
    let _server = fixture.plane.serve_webhook(&fixture.namespace, webhook).await.unwrap();
    let deployments = fixture.api::<Deployment>();
    let older: Deployment = fixture.create(deployment("older")).await;
    assert_eq!(deployment_color(&older), None);
    fixture.wait_for_pods("older", None).await;

    fixture.create::<Paint>(paint("blue", "Deployment", "apps/v1")).await;
    fixture.wait_for_pods("older", Some("blue")).await;
    fixture.wait_for_condition("True").await;

    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let newer = serde_json::from_value(deployment("newer")).unwrap();
    eventually("the binding to reach the webhook", TIMEOUT, async || {
        deployment_color(&deployments.create(&dry_run, &newer).await.ok()?)
    })
    .await;
    let newer = deployments.create(&PostParams::default(), &newer).await.unwrap();
    assert_eq!(deployment_color(&newer).as_deref(), Some("blue"));
    fixture.wait_for_pods("newer", Some("blue")).await;

    let changed = Patch::Merge(json!({"spec": {"color": "green"}}));
    fixture.api::<Paint>().patch("blue", &PatchParams::default(), &changed).await.unwrap();
    fixture.wait_for_pods("older", Some("green")).await;
    fixture.wait_for_pods("newer", Some("green")).await;

    let other_tier = Patch::Merge(json!({"metadata": {"labels": {"tier": "back"}}}));
    deployments.patch("older", &PatchParams::default(), &other_tier).await.unwrap();
    fixture.wait_for_pods("older", None).await;

    fixture.api::<Paint>().delete("blue", &DeleteParams::default()).await.unwrap();
    fixture.wait_for_pods("newer", None).await;
    eventually("the deletion of the binding", TIMEOUT, async || {
        fixture.api::<Paint>().get_opt("blue").await.ok()?.is_none().then_some(())
    })
    .await;
    for name in ["older", "newer"] {
        let labels = deployments.get(name).await.unwrap().metadata.labels.unwrap();
        assert_eq!(labels.keys().collect::<Vec<_>>(), ["tier"], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_gets_the_injection_when_it_is_created_and_keeps_it() {
    let fixture = Fixture::new().await;
    let webhook = Webhook::new("bindings.reknit.dev").binding::<Paint>();
    let _server = fixture.plane.serve_webhook(&fixture.namespace, webhook).await.unwrap();
    let jobs = fixture.api::<Job>();
    let mut template = pod_template("job");
    template["spec"]["restartPolicy"] = json!("Never");
    let job =
        json!({"metadata": {"name": "job", "labels": {"tier": "front"}}, "spec": {"template": template}});
    let job: Job = serde_json::from_value(job).unwrap();
    fixture.create::<Paint>(paint("blue", "Job", "batch/v1")).await;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let job_color = |job: &Job| color(job.spec.as_ref()?.template.spec.as_ref());
    eventually("the binding to reach the webhook", TIMEOUT, async || {
        job_color(&jobs.create(&dry_run, &job).await.ok()?)
    })
    .await;
    jobs.create(&PostParams::default(), &job).await.unwrap();
    eventually("the Job completes", TIMEOUT, async || {
        (jobs.get("job").await.ok()?.status?.succeeded == Some(1)).then_some(())
    })
    .await;

    fixture.wait_for_condition("True").await;
    let changed = Patch::Merge(json!({"spec": {"color": "green"}}));
    fixture.api::<Paint>().patch("blue", &PatchParams::default(), &changed).await.unwrap();
    fixture.wait_for_condition("False").await;

    fixture.api::<Paint>().delete("blue", &DeleteParams::default()).await.unwrap();
    eventually("the deletion of the binding", TIMEOUT, async || {
        fixture.api::<Paint>().get_opt("blue").await.ok()?.is_none().then_some(())
    })
    .await;
    assert_eq!(job_color(&jobs.get("job").await.unwrap()).as_deref(), Some("blue"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_bindings_gets_its_rules_and_selectors() {
    let process = Process::start("binding", |webhook| webhook.binding::<Paint>()).await;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(process.client.clone());
    let configuration = serde_json::from_value(process.configuration("bindings", "/bindings")).unwrap();
    let name = configurations.create(&PostParams::default(), &configuration).await.unwrap().name_any();
    let webhook = eventually("the rules of the webhook", TIMEOUT, async || {
        let webhook = configurations.get(&name).await.ok()?.webhooks?.remove(0);
        webhook.rules.is_some().then_some(webhook)
    })
    .await;
    let resources = webhook.rules.into_iter().flatten().flat_map(|rule| rule.resources).flatten();
    assert_eq!(resources.collect::<Vec<_>>(), ["daemonsets", "deployments", "statefulsets", "jobs"]);
    let exclude = json!({"key": "bindings.knative.dev/exclude", "operator": "NotIn", "values": ["true"]});
    assert_eq!(json!(webhook.object_selector.unwrap())["matchExpressions"], json!([exclude]));
    let of_namespaces = &json!(webhook.namespace_selector.unwrap())["matchExpressions"];
    assert_eq!(of_namespaces[1], exclude);
}

#[tokio::test(flavor = "multi_thread")]
async fn inclusion_binds_only_labelled_objects_in_labelled_namespaces() {
    ControlPlane::shared().await.unwrap().install::<Paint>().await.unwrap();
    let inclusion =
        |webhook: Webhook| webhook.binding::<Paint>().binding_selection(BindingSelection::Inclusion);
    let process = Process::start("inclusion", inclusion).await;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(process.client.clone());
    let configuration = serde_json::from_value(process.configuration("bindings", "/bindings")).unwrap();
    configurations.create(&PostParams::default(), &configuration).await.unwrap();
    let paints: Api<Paint> = Api::namespaced(process.client.clone(), &process.namespace);
    let blue = serde_json::from_value(paint("blue", "Deployment", "apps/v1")).unwrap();
    paints.create(&PostParams::default(), &blue).await.unwrap();

    let set_label_of_namespace = async |value: Value| {
        let namespaces: Api<Namespace> = Api::all(process.client.clone());
        let labels = Patch::Merge(json!({"metadata": {"labels": {"bindings.knative.dev/include": value}}}));
        namespaces.patch(&process.namespace, &PatchParams::default(), &labels).await.unwrap();
    };
    let deployments: Api<Deployment> = Api::namespaced(process.client.clone(), &process.namespace);
    let color_at_admission = async |labels: &Value| {
        let mut deployment = deployment("web");
        deployment["metadata"]["labels"] = labels.clone();
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let created = deployments.create(&dry_run, &serde_json::from_value(deployment).unwrap()).await;
        created.map(|deployment| deployment_color(&deployment))
    };
    let included = json!({"tier": "front", "bindings.knative.dev/include": "true"});
    let wait_for_color = async |expected: Option<&str>| {
        eventually(format!("the color {expected:?}"), TIMEOUT, async || {
            match color_at_admission(&included).await {
                Ok(color) if color.as_deref() == expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    };

    set_label_of_namespace(json!("true")).await;
    wait_for_color(Some("blue")).await;
    assert_eq!(color_at_admission(&json!({"tier": "front"})).await.unwrap(), None);
    set_label_of_namespace(Value::Null).await;
    wait_for_color(None).await;
}
