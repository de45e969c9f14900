//! Plans against a real API server: what they print, that they change nothing, and that the real run does the same.

mod meanwhile;
mod references;
mod sample;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration,
        core::v1::{ConfigMap, Namespace, Pod, Service},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceDefinition, CustomResourceDefinitionVersion,
    },
};
use kube::{
    Api, Client, CustomResourceExt, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams,
    },
};
use reknit::{
    prelude::*,
    testing::{ControlPlane, ControllerExt, eventually},
};
use reknit_samples::{SimpleDeployment, SimpleDeploymentSpec};
use serde_json::{Value, json};

use crate::support::{objects::Objects, server::Server, wait::TIMEOUT};

const NOTHING: &str = "Plan: 0 to create, 0 to change, 0 to change in status only, 0 to delete; 0 failed\n";
/// Logs writes with their bodies, since the body of a deletion decides whether it is a dry run.
const AUDIT_POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/plan/audit-policy.yaml");

/// A server with the Kinds of the samples, which logs writes.
async fn server() -> Server {
    let audited = ControlPlane::builder().audited().arg(format!("--audit-policy-file={AUDIT_POLICY}"));
    let server = Server::own(audited).await;
    server.install::<SimpleDeployment>().await.expect("the CRD");
    server.install::<reknit_samples::AddressableService>().await.expect("the CRD");
    server
}

/// The writes of the test and its programs so far. The server's own are left out.
fn writes(server: &Server) -> Vec<Value> {
    let events = server.audit_events().expect("the audit log");
    let is_own =
        |event: &Value| !event["user"]["username"].as_str().unwrap_or_default().starts_with("system:");
    events.into_iter().filter(is_own).collect()
}

fn is_dry_run(event: &Value) -> bool {
    match event["verb"].as_str() {
        Some("delete" | "deletecollection") => event["requestObject"]["dryRun"] == json!(["All"]),
        _ => event["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=All")),
    }
}

/// The resourceVersions of the objects in a namespace.
async fn versions(objects: &Objects) -> BTreeMap<String, Option<String>> {
    let (list, mut versions) = (ListParams::default(), BTreeMap::new());
    let mut add = |kind: &str, name: String, version| versions.insert(format!("{kind} {name}"), version);
    for pod in objects.pods().list(&list).await.expect("a list") {
        add("Pod", pod.name_any(), pod.resource_version());
    }
    for object in objects.deployments().list(&list).await.expect("a list") {
        add("SimpleDeployment", object.name_any(), object.resource_version());
    }
    for object in objects.addressables().list(&list).await.expect("a list") {
        add("AddressableService", object.name_any(), object.resource_version());
    }
    for map in Api::<ConfigMap>::namespaced(objects.client.clone(), &objects.namespace)
        .list(&list)
        .await
        .expect("a list")
    {
        add("ConfigMap", map.name_any(), map.resource_version());
    }
    versions
}

/// A plan: its exit status, its text and its JSON.
struct Planned(i32, String, Value);

/// Plans a program. Fails if anything has changed, or if a write was not a dry run.
async fn plan(server: &Server, objects: &Objects, main: Main) -> Planned {
    let (before, logged) = (versions(objects).await, writes(server).len());
    let planned = reknit::sharedmain::internal::plan(main, objects.client.clone().into()).await;
    let (status, text, json) = planned.expect("a plan");
    println!("{text}");
    assert_eq!(versions(objects).await, before);
    let real: Vec<_> = writes(server).into_iter().skip(logged).filter(|event| !is_dry_run(event)).collect();
    assert!(real.is_empty(), "{real:#?}");
    Planned(status.into(), text, json)
}

/// Runs each queued key of a controller once, for real.
async fn run_once(cx: &Context, constructor: impl Fn(&Context) -> Result<Controller>) {
    let controller = constructor(cx).expect("the controller");
    cx.informers().start();
    for informer in controller.informers() {
        informer.synced().await;
    }
    for key in controller.take_queued() {
        let _ = controller.once(&key).await.expect("the real run succeeds");
    }
}

/// Makes writes of every kind.
struct Writer(Client);

impl ReconcileKind for Writer {
    type Kind = SimpleDeployment;

    async fn reconcile_kind(
        &self,
        object: &SimpleDeployment,
        _: &mut reknit_samples::SimpleDeploymentStatus,
    ) -> Result<Outcome> {
        let namespace = object.namespace().unwrap_or_default();
        let maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), &namespace);
        if maps.get_opt("created").await?.is_some() {
            return Ok(Outcome::done());
        }
        let (post, patch, delete) = (PostParams::default(), PatchParams::default(), DeleteParams::default());
        let new = |name: &str| {
            serde_json::from_value::<ConfigMap>(json!({"metadata": {"name": name}, "data": {"a": "1"}}))
        };
        maps.create(&post, &new("created")?).await?;
        maps.patch("created", &patch, &Patch::Merge(json!({"data": {"b": "2"}}))).await?;
        maps.patch("live", &patch, &Patch::Strategic(json!({"data": {"a": "2"}}))).await?;
        let live = maps.patch("live", &patch, &Patch::Merge(json!({"data": {"b": "2"}}))).await?;
        maps.replace("live", &post, &live).await?;
        for (name, value) in [("live", "3"), ("live", "4"), ("applied", "3"), ("applied", "4")] {
            let metadata = json!({ "name": name });
            let applied =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"c": value}});
            maps.patch(name, &PatchParams::apply("writer"), &Patch::Apply(&applied)).await?;
        }
        let _ = maps.delete("replaced", &delete).await?;
        maps.create(&post, &new("replaced")?).await?;
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/deleted");
        let without_body = http::Request::delete(path).body(Vec::new())?;
        let _ = self.0.request::<Value>(without_body).await?;
        let _ = maps.delete_collection(&delete, &ListParams::default().labels("collection=yes")).await?;
        let pods: Api<Pod> = Api::namespaced(self.0.clone(), &namespace);
        pods.evict("evicted", &EvictParams::default()).await?;
        let namespaces: Api<Namespace> = Api::all(self.0.clone());
        let planned = serde_json::from_value(json!({"metadata": {"name": "planned"}}))?;
        namespaces.create(&post, &planned).await?;
        let unknown = Patch::Merge(json!({"spec": {"unknown": 1}}));
        let objects: Api<SimpleDeployment> = Api::namespaced(self.0.clone(), &namespace);
        objects.patch(&object.name_any(), &patch, &unknown).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_of_every_kind_are_dry_runs() {
    let server = server().await;
    let objects = server.objects_in_new_namespace("plan").await;
    let maps: Api<ConfigMap> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let map = |name: &str, label: &str| json!({"metadata": {"name": name, "labels": {"collection": label}}, "data": {"a": "1"}});
    for (name, label) in
        [("live", "no"), ("replaced", "no"), ("deleted", "no"), ("one", "yes"), ("two", "yes")]
    {
        let map = serde_json::from_value(map(name, label)).expect("a ConfigMap");
        maps.create(&PostParams::default(), &map).await.expect("the ConfigMap is created");
    }
    let pod = json!({"metadata": {"name": "evicted"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    objects
        .pods()
        .create(&PostParams::default(), &serde_json::from_value(pod).expect("a Pod"))
        .await
        .expect("a pod");
    let object = SimpleDeployment::new("web", SimpleDeploymentSpec { image: "a".into(), replicas: 0 });
    objects.deployments().create(&PostParams::default(), &object).await.expect("the object is created");

    let logged = writes(&server).len();
    let writer =
        |cx: &Context| Ok(Controller::of::<SimpleDeployment>(cx).reconciler(Writer(cx.client())).build());
    let Planned(status, text, plan) =
        plan(&server, &objects, Main::new("writer").controller(writer).plannable()).await;
    assert!(writes(&server).len() > logged + 15);
    assert_eq!(status, 4, "a field was dropped");
    assert!(text.contains("unknown field \"spec.unknown\""), "{text}");
    let after = |key: &str| {
        let key = format!("{}/{key}", objects.namespace);
        let found = plan["objects"].as_array().expect("a list").iter().find(|object| object["key"] == key);
        let object = found.unwrap_or_else(|| panic!("{key} is planned"));
        (object["action"].as_str().expect("an action").to_owned(), object["after"]["data"].clone())
    };
    for (key, action, data) in [
        ("applied", "create", json!({"c": "4"})),
        ("created", "create", json!({"a": "1", "b": "2"})),
        ("deleted", "delete", Value::Null),
        ("live", "change", json!({"a": "2", "b": "2", "c": "4"})),
        ("one", "delete", Value::Null),
        ("replaced", "replace", json!({"a": "1"})),
        ("two", "delete", Value::Null),
    ] {
        assert_eq!(after(key), (action.to_owned(), data), "{key}");
    }
    assert!(text.contains("  + Namespace planned\n"), "{text}");
    assert!(text.contains("/evicted: POST eviction"), "{text}");
}

/// Writes what the API server cannot validate, and a field that the definition of its Kind lacks.
struct Unvalidated(Client);

impl ReconcileKind for Unvalidated {
    type Kind = SimpleDeployment;

    async fn reconcile_kind(
        &self,
        object: &SimpleDeployment,
        _: &mut reknit_samples::SimpleDeploymentStatus,
    ) -> Result<Outcome> {
        let namespace = object.namespace().unwrap_or_default();
        let maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), &namespace);
        let metadata = json!({"name": "new", "labels": {"webhook": "down"}});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}});
        maps.patch("new", &PatchParams::apply("test"), &Patch::Apply(map)).await?;
        maps.patch("new", &PatchParams::default(), &Patch::Merge(json!({"data": {"b": "2"}}))).await?;
        let live = Patch::Merge(json!({"data": {"c": "3"}}));
        maps.patch("live", &PatchParams::default(), &live).await?;
        let _ = maps.delete("live", &DeleteParams::default()).await?;
        let objects: Api<SimpleDeployment> = Api::namespaced(self.0.clone(), &namespace);
        let unknown = json!({"apiVersion": "samples.knative.dev/v1alpha1", "kind": "SimpleDeployment", "spec": {"unknown": 1}});
        objects.patch(&object.name_any(), &PatchParams::apply("test"), &Patch::Apply(unknown)).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_webhook_that_is_down_are_planned_and_not_validated() {
    let server = server().await;
    let objects = server.objects_in_new_namespace("plan").await;
    let maps: Api<ConfigMap> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let live = json!({"metadata": {"name": "live", "labels": {"webhook": "down"}}, "data": {"a": "1"}});
    let live = serde_json::from_value(live).expect("a ConfigMap");
    maps.create(&PostParams::default(), &live).await.expect("the ConfigMap is created");
    let object = SimpleDeployment::new("web", SimpleDeploymentSpec { image: "a".into(), replicas: 0 });
    objects.deployments().create(&PostParams::default(), &object).await.expect("the object is created");
    let webhooks = json!({"metadata": {"name": "plan"}, "webhooks": [{
        "name": "down.plan.reknit.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/"}, "objectSelector": {"matchLabels": {"webhook": "down"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}],
    }]});
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(objects.client.clone());
    let created = configurations
        .create(&PostParams::default(), &serde_json::from_value(webhooks).expect("a configuration"))
        .await;
    created.expect("the webhook is registered");
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let down = json!({"metadata": {"name": "x", "labels": {"webhook": "down"}}});
    let down: ConfigMap = serde_json::from_value(down).expect("a ConfigMap");
    eventually("the webhook to be called", Duration::from_secs(60), async || {
        match maps.create(&dry_run, &down).await {
            Err(error) if error.to_string().contains("failed calling webhook") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    let controller = |cx: &Context| {
        Ok(Controller::of::<SimpleDeployment>(cx).reconciler(Unvalidated(cx.client())).build())
    };
    let Planned(status, text, plan) =
        plan(&server, &objects, Main::new("test").controller(controller).plannable()).await;
    assert_eq!(status, 4, "the definition lacks a field");
    assert!(text.contains("field not declared in schema"), "{text}");
    assert!(text.contains("(apply the CustomResourceDefinitions of this version first)"), "{text}");
    let webhook = "the object, since an admission webhook answers no dry runs or cannot be called";
    for (name, action) in [("new", "create"), ("live", "delete")] {
        let key = format!("{}/{name}", objects.namespace);
        let found = plan["objects"].as_array().expect("a list").iter().find(|object| object["key"] == key);
        let object = found.unwrap_or_else(|| panic!("{key} is planned: {text}"));
        assert_eq!(
            (&object["action"], &object["notValidated"]),
            (&json!(action), &json!([webhook])),
            "{key}"
        );
        if action == "create" {
            assert_eq!(object["after"]["data"], json!({"a": "1", "b": "2"}));
        }
    }
}

/// Creates a Service for each object, and changes it afterwards: by a patch, and as a whole.
struct Serving(Client);

impl ReconcileKind for Serving {
    type Kind = SimpleDeployment;

    async fn reconcile_kind(
        &self,
        object: &SimpleDeployment,
        _: &mut reknit_samples::SimpleDeploymentStatus,
    ) -> Result<Outcome> {
        let services: Api<Service> = Api::namespaced(self.0.clone(), &object.namespace().unwrap_or_default());
        let name = object.name_any();
        let spec = json!({"type": "NodePort", "selector": {"app": "a"}, "ports": [{"port": 80}]});
        let service = json!({"metadata": {"name": name}, "spec": spec});
        services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
        let label = Patch::Merge(json!({"metadata": {"labels": {"made": "yes"}}}));
        let mut service = services.patch(&name, &PatchParams::default(), &label).await?;
        service.metadata.annotations = Some([("replaced".into(), "yes".into())].into());
        services.replace(&name, &PostParams::default(), &service).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn later_writes_to_a_planned_object_do_not_send_what_the_api_server_has_chosen() {
    let server = server().await;
    let objects = server.objects_in_new_namespace("plan").await;
    let object = SimpleDeployment::new("web", SimpleDeploymentSpec { image: "a".into(), replicas: 0 });
    objects.deployments().create(&PostParams::default(), &object).await.expect("the object is created");
    let serving =
        |cx: &Context| Ok(Controller::of::<SimpleDeployment>(cx).reconciler(Serving(cx.client())).build());
    let Planned(status, text, plan) =
        plan(&server, &objects, Main::new("serving").controller(serving).plannable()).await;
    assert_eq!(status, 3, "{text}");
    let planned = plan["objects"].as_array().expect("a list").iter();
    let service = planned.clone().find(|object| object["kind"] == "Service").expect("a Service");
    let metadata = &service["after"]["metadata"];
    assert_eq!([&metadata["labels"]["made"], &metadata["annotations"]["replaced"]], ["yes", "yes"]);
}

/// Applies its object.
struct Applier(Client);

impl ReconcileKind for Applier {
    type Kind = SimpleDeployment;

    async fn reconcile_kind(
        &self,
        object: &SimpleDeployment,
        _: &mut reknit_samples::SimpleDeploymentStatus,
    ) -> Result<Outcome> {
        let namespace = object.namespace().unwrap_or_default();
        let objects: Api<SimpleDeployment> = Api::namespaced(self.0.clone(), &namespace);
        let applied = json!({"apiVersion": "samples.knative.dev/v1alpha1", "kind": "SimpleDeployment", "spec": {"replicas": 2}});
        objects.patch(&object.name_any(), &PatchParams::apply("test"), &Patch::Apply(applied)).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_is_planned_although_a_version_that_the_managed_fields_name_was_removed() {
    let server = server().await;
    let objects = server.objects_in_new_namespace("plan").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(objects.client.clone());
    let current = definitions.get(SimpleDeployment::crd_name()).await.expect("the CRD").spec.versions;
    let mut versions = current.clone();
    versions.push(CustomResourceDefinitionVersion {
        name: "v1alpha0".into(),
        storage: false,
        ..current[0].clone()
    });
    let set_versions = async |versions: Value| {
        let patch = Patch::Merge(json!({"spec": {"versions": versions}}));
        let name = SimpleDeployment::crd_name();
        definitions.patch(name, &PatchParams::default(), &patch).await.expect("the CRD is changed");
    };
    set_versions(json!(versions)).await;
    let old = json!({
        "apiVersion": "samples.knative.dev/v1alpha0", "kind": "SimpleDeployment", "metadata": {"name": "web"},
        "spec": {"image": "a", "replicas": 1},
    });
    let resource = ApiResource {
        version: "v1alpha0".into(),
        api_version: "samples.knative.dev/v1alpha0".into(),
        ..ApiResource::erase::<SimpleDeployment>(&())
    };
    let in_old_version: Api<DynamicObject> =
        Api::namespaced_with(objects.client.clone(), &objects.namespace, &resource);
    eventually("the old version to be served", TIMEOUT, async || {
        in_old_version.patch("web", &PatchParams::apply("gitops"), &Patch::Apply(&old)).await
    })
    .await;
    set_versions(json!(current)).await;
    eventually("the removal of the old version", TIMEOUT, async || {
        in_old_version.list(&ListParams::default()).await.is_err()
    })
    .await;

    let applier =
        |cx: &Context| Ok(Controller::of::<SimpleDeployment>(cx).reconciler(Applier(cx.client())).build());
    let Planned(status, text, plan) =
        plan(&server, &objects, Main::new("applier").controller(applier).plannable()).await;
    assert_eq!(status, 3, "{text}");
    let [web] = &plan["objects"].as_array().expect("a list")[..] else { panic!("{plan:#}") };
    assert_eq!(
        (&web["action"], &web["after"]["spec"]),
        (&json!("change"), &json!({"image": "a", "replicas": 2}))
    );
    assert!(text.contains("the managed fields name a version that was removed"), "{text}");
}
