//! A binding on a real API server with nodes: its controller, its webhook, and the pods of its subjects.

mod not_installed;
mod taken;

use std::time::Duration;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        core::v1::{ConfigMap, Event, Namespace, Pod, PodSpec},
        rbac::v1::ClusterRole,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, GetParams, ListParams, Patch, PatchParams, PostParams},
    core::{GroupVersionKind, NamespaceResourceScope, Request},
};
use reknit_apis::DuckStatus;
use reknit_injection::Context;
use reknit_knative::{Binder, BindingMutator, BindingSelection};
use reknit_reconciler::{Controller, FinalizeKind, Kinds, Outcome, ReconcileKind, Result};
use reknit_testing::{
    ControlPlane, Controllers, RunningControllers, eventually, internal::serves_mutating_policies,
};
use reknit_webhook::Webhook;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::paint::Paint;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The color of bindings that are never bound.
const DRY: &str = "dry";

/// The controller of the bindings.
struct Painter(Binder<Paint>);

impl ReconcileKind for Painter {
    type Kind = Paint;
    async fn reconcile_kind(&self, paint: &Paint, status: &mut DuckStatus) -> Result<Outcome> {
        if paint.spec.color == DRY {
            return Err("the color is dry".into());
        }
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

#[expect(clippy::unnecessary_wraps, reason = "it is the constructor of a controller")]
fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Paint>(cx);
    let binder = Binder::new(&mut build, Kinds::any());
    Ok(build.reconciler(Painter(binder)).finalizing().build())
}

#[expect(clippy::unnecessary_wraps, reason = "it is the constructor of a webhook")]
fn webhook(cx: &Context) -> Result<Webhook> {
    Ok(Webhook::new("bindings.reknit.dev").mutator(BindingMutator::of::<Paint>(cx)))
}

/// A namespace with the controller of the bindings.
struct Fixture {
    plane: &'static ControlPlane,
    client: Client,
    namespace: String,
    _controllers: RunningControllers,
}

impl Fixture {
    async fn new() -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        plane.install::<Paint>().await.unwrap();
        plane.nodes(1).await.unwrap();
        let (client, namespace) = (plane.client().unwrap(), plane.namespace("binding").await.unwrap());
        let controllers = Controllers::new(client.clone()).controller(controller).start();
        Self { plane, client, namespace, _controllers: controllers }
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
            let pods = pods.list(&app).await.map_err(|error| error.to_string())?.items;
            let colors: Vec<_> = pods.iter().map(|pod| color(pod.spec.as_ref())).collect();
            let is_expected = |color: &Option<String>| color.as_deref() == expected;
            match !colors.is_empty() && colors.iter().all(is_expected) {
                true => Ok(()),
                false => Err(format!("{colors:?}, {:?}", self.api::<Deployment>().get(deployment).await)),
            }
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
async fn inclusion_binds_only_labelled_objects_in_labelled_namespaces() {
    let fixture = Fixture::new().await;
    let set_label_of_namespace = async |value: Value| {
        let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
        let labels = Patch::Merge(json!({"metadata": {"labels": {"bindings.knative.dev/include": value}}}));
        namespaces.patch(&fixture.namespace, &PatchParams::default(), &labels).await.unwrap();
    };
    set_label_of_namespace(json!("true")).await;
    let inclusion = |cx: &Context| {
        let mutator = BindingMutator::of::<Paint>(cx).selection(BindingSelection::Inclusion);
        Ok(Webhook::new("inclusion.reknit.dev").mutator(mutator))
    };
    let _server = fixture.plane.serve_webhook(&fixture.namespace, inclusion).await.unwrap();
    fixture.create::<Paint>(paint("blue", "Deployment", "apps/v1")).await;
    let deployments = fixture.api::<Deployment>();
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

    wait_for_color(Some("blue")).await;
    assert_eq!(color_at_admission(&json!({"tier": "front"})).await.unwrap(), None);
    set_label_of_namespace(Value::Null).await;
    wait_for_color(None).await;
}

/// The definition of Gadgets, which have a pod template. The last version is stored.
fn gadgets(group: &str, versions: &[&str]) -> CustomResourceDefinition {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = |name: &&str| {
        let is_stored = versions.last() == Some(name);
        json!({"name": name, "served": true, "storage": is_stored, "schema": {"openAPIV3Schema": schema}})
    };
    serde_json::from_value(json!({
        "metadata": {"name": format!("gadgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"kind": "Gadget", "plural": "gadgets"},
            "versions": versions.iter().map(version).collect::<Vec<_>>(),
        },
    }))
    .unwrap()
}

impl Fixture {
    /// Installs Gadgets, creates one, and binds it in the first version.
    async fn bind_gadget(&self, definition: &CustomResourceDefinition) {
        self.plane.install_crd(definition.clone()).await.unwrap();
        let api_version = format!("{}/{}", definition.spec.group, definition.spec.versions[0].name);
        let gadget = json!({
            "apiVersion": api_version, "kind": "Gadget",
            "metadata": {"name": "g", "namespace": self.namespace, "labels": {"tier": "front"}},
            "spec": {"template": pod_template("g")},
        });
        self.plane.apply_yaml(&gadget.to_string()).await.unwrap();
        self.create::<Paint>(paint("blue", "Gadget", &api_version)).await;
        self.wait_for_condition("True").await;
    }

    async fn delete_paint(&self) {
        let paints = self.api::<Paint>();
        paints.delete("blue", &DeleteParams::default()).await.unwrap();
        let is_gone = async || paints.get_opt("blue").await.unwrap().is_none();
        eventually("the end of the binding", TIMEOUT, is_gone).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_is_deleted_after_the_kind_of_its_subjects_was_removed() {
    let fixture = Fixture::new().await;
    fixture.bind_gadget(&gadgets("subjects.reknit.dev", &["v1"])).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client.clone());
    let name = "gadgets.subjects.reknit.dev";
    definitions.delete(name, &DeleteParams::default()).await.unwrap();
    let is_gone = async || definitions.get_opt(name).await.unwrap().is_none();
    eventually("the removal of the definition", TIMEOUT, is_gone).await;
    fixture.delete_paint().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_is_bound_and_unbound_although_the_version_that_the_binding_names_is_no_longer_served() {
    let fixture = Fixture::new().await;
    let mut definition = gadgets("versions.reknit.dev", &["v1", "v2"]);
    fixture.bind_gadget(&definition).await;
    definition.spec.versions[0].served = false;
    let unserved = Patch::Merge(json!({"spec": {"versions": definition.spec.versions}}));
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client.clone());
    let params = PatchParams::default();
    definitions.patch("gadgets.versions.reknit.dev", &params, &unserved).await.unwrap();

    let kind = GroupVersionKind::gvk("versions.reknit.dev", "v2", "Gadget");
    let resource = ApiResource::from_gvk(&kind);
    let gadgets: Api<DynamicObject> =
        Api::namespaced_with(fixture.client.clone(), &fixture.namespace, &resource);
    let color_of_gadget = async || {
        let gadget = gadgets.get("g").await.unwrap();
        gadget.data.pointer("/spec/template/spec/containers/0/env/0/value").cloned()
    };
    let changed = Patch::Merge(json!({"spec": {"color": "green"}}));
    fixture.api::<Paint>().patch("blue", &params, &changed).await.unwrap();
    eventually("the changed color", TIMEOUT, async || color_of_gadget().await == Some(json!("green"))).await;
    fixture.delete_paint().await;
    assert_eq!(color_of_gadget().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_is_bound_and_unbound_however_deep_its_status_is_nested() {
    let fixture = Fixture::new().await;
    fixture.bind_gadget(&gadgets("nesting.reknit.dev", &["v1"])).await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("nesting.reknit.dev", "v1", "Gadget"));
    let gadgets: Api<DynamicObject> =
        Api::namespaced_with(fixture.client.clone(), &fixture.namespace, &resource);
    let deep = (0..200).fold(json!(1), |inner, _| json!({ "inner": inner }));
    let (params, status) = (PatchParams::default(), Patch::Merge(json!({ "status": deep })));
    let answer = gadgets.patch("g", &params, &status).await;
    assert!(matches!(answer, Err(kube::Error::SerdeError(_))), "{answer:?}");
    let stored = async || {
        let path = DynamicObject::url_path(&resource, Some(&fixture.namespace));
        let request = Request::new(path).get("g", &GetParams::default()).unwrap();
        fixture.client.request_text(request).await.unwrap()
    };
    let changed = Patch::Merge(json!({"spec": {"color": "green"}}));
    fixture.api::<Paint>().patch("blue", &params, &changed).await.unwrap();
    eventually("the changed color", TIMEOUT, async || stored().await.contains(r#""value":"green""#)).await;
    fixture.delete_paint().await;
    let stored = stored().await;
    assert!(!stored.contains("COLOR") && stored.contains(&format!(r#""status":{deep}"#)), "{stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_of_a_subject_can_be_changed_but_neither_its_group_nor_its_kind() {
    let fixture = Fixture::new().await;
    fixture.create::<Paint>(paint("blue", "Deployment", "apps/v1")).await;
    let set = async |kind: &str, api_version: &str| {
        let changed = Patch::Merge(json!({"spec": {"subject": {"apiVersion": api_version, "kind": kind}}}));
        fixture.api::<Paint>().patch("blue", &PatchParams::default(), &changed).await
    };
    for (kind, api_version) in
        [("StatefulSet", "apps/v1"), ("Deployment", "apps"), ("Deployment", "batch/v1")]
    {
        let error = set(kind, api_version).await.unwrap_err().to_string();
        assert!(error.contains("the API group and the Kind of the subject cannot be changed"), "{error}");
    }
    set("Deployment", "apps/v2").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_changes_neither_cluster_scoped_objects_nor_those_without_a_pod_template() {
    let fixture = Fixture::new().await;
    let cluster_roles: Api<ClusterRole> = Api::all(fixture.client.clone());
    let role_name = format!("{}-role", fixture.namespace);
    let role = json!({"metadata": {"name": role_name}, "rules": []});
    let role = serde_json::from_value(role).unwrap();
    let role = cluster_roles.create(&PostParams::default(), &role).await.unwrap();
    let map: ConfigMap = fixture.create(json!({"metadata": {"name": "map"}})).await;
    let kinds = [
        ("ClusterRole", "rbac.authorization.k8s.io/v1", &*role_name, "cluster-scoped"),
        ("ConfigMap", "v1", "map", "it is not PodSpecable"),
    ];
    for (kind, api_version, name, why) in kinds {
        let subject = json!({"apiVersion": api_version, "kind": kind, "name": name});
        let binding = kind.to_lowercase();
        let paint = json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Paint", "metadata": {"name": binding},
            "spec": {"color": "red", "subject": subject}});
        let _: Paint = fixture.create(paint).await;
        eventually(format!("a refusal of the {kind} in the condition"), TIMEOUT, async || {
            let status = fixture.api::<Paint>().get(&binding).await.ok()?.status?;
            let message = status.condition("Available")?.message.clone().unwrap_or_default();
            message.contains(why).then_some(())
        })
        .await;
        fixture.api::<Paint>().delete(&binding, &DeleteParams::default()).await.unwrap();
        let is_gone =
            async || fixture.api::<Paint>().get_opt(&binding).await.is_ok_and(|paint| paint.is_none());
        eventually("the end of the binding", TIMEOUT, is_gone).await;
    }
    let version = |metadata: kube::api::ObjectMeta| metadata.resource_version;
    let role_now = cluster_roles.get(&role_name).await.unwrap();
    assert_eq!(version(role_now.metadata), version(role.metadata));
    let map_now = fixture.api::<ConfigMap>().get("map").await.unwrap();
    assert_eq!(version(map_now.metadata), version(map.metadata));
}

/// Installs a policy that removes the environment of each written Deployment of the namespace.
async fn remove_environments(fixture: &Fixture) {
    let (name, env) = (&fixture.namespace, "spec.template.spec.containers[0].env");
    let expression = format!(
        "has(object.{env}) ? [JSONPatch{{op: \"remove\", path: \"/spec/template/spec/containers/0/env\"}}] : []"
    );
    let of_namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
    let rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["deployments"]});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": {"namespaceSelector": of_namespace, "resourceRules": [rule]},
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name},
    });
    for object in [&policy, &binding] {
        fixture.plane.apply_yaml(&object.to_string()).await.unwrap();
    }
    let mut probe = deployment("probe");
    probe["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "COLOR", "value": "red"}]);
    let probe = serde_json::from_value(probe).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let is_removed = async || {
        deployment_color(&fixture.api::<Deployment>().create(&dry_run, &probe).await.unwrap()).is_none()
    };
    eventually("the policy", TIMEOUT, is_removed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_from_which_a_policy_removes_the_injection_does_not_count_as_bound() {
    let fixture = Fixture::new().await;
    if !serves_mutating_policies(&fixture.client).await {
        return;
    }
    remove_environments(&fixture).await;
    fixture.create::<Deployment>(deployment("web")).await;
    fixture.create::<Paint>(paint("blue", "Deployment", "apps/v1")).await;
    let events = fixture.api::<Event>();
    eventually("the event", TIMEOUT, async || {
        let mut events = events.list(&ListParams::default()).await.ok()?.items.into_iter();
        events.find(|event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.reason.as_deref() == Some("InjectionRemoved")
                && message.contains("admission has changed the injection")
        })
    })
    .await;
    let paint = fixture.api::<Paint>().get("blue").await.unwrap();
    let condition = paint.status.as_ref().and_then(|status| status.condition("Available"));
    assert_eq!(condition.unwrap().reason.as_deref(), Some("InjectionRemoved"));
}
