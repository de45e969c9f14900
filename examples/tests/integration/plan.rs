//! The plans of the examples, compared with what the examples then do.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
    client::Body,
    discovery::{Discovery, Scope, pinned_kind, verbs},
};
use reknit::{
    prelude::*,
    testing::{ControlPlane, ControllerExt, eventually},
};
use serde_json::{Value, json};
use tower::BoxError;

use crate::{
    cloud_ide,
    support::{EXAMPLES, file, program_of},
};

/// Logs writes with their bodies, since the body of a deletion decides whether it is a dry run.
const AUDIT_POLICY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/integration/plan/audit-policy.yaml");

const NOTHING: &str = "Plan: 0 to create, 0 to change, 0 to change in status only, 0 to delete; 0 failed\n";

/// The Kind, the name and the change of an object of each example.
fn change_of(example: &str) -> (&'static str, &'static str, Value) {
    match example {
        "cronjob" => ("CronJob", "nightly", json!({"spec": {"schedule": "30 3 * * *"}})),
        "eventing" => (
            "Trigger",
            "ticks",
            json!({"spec": {"subscriber": {"ref": null, "uri": "http://a.example.com"}}}),
        ),
        "foo" => ("Foo", "example", json!({"spec": {"replicas": 3}})),
        "ingress" => ("Route", "shop", json!({"spec": {"host": "other.example.com"}})),
        "mydemo" => ("Mydemo", "example", json!({"spec": {"port": 9090}})),
        "sequence" => ("Sequence", "example", json!({"spec": {"steps": [{"uri": "http://a.example.com"}]}})),
        "waitdeployment" => ("Waitdeployment", "example", json!({"spec": {"replicas": 3}})),
        other => panic!("no change of {other}"),
    }
}

/// A client through which an example writes what its version before wrote: its children have a label more, and its
/// conditions another message.
fn version_before(client: Client) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let (parts, body) = request.into_parts();
            let mut body = body.collect_bytes().await?.to_vec();
            if let Ok(mut written) = serde_json::from_slice(&body) {
                write_as_before(&mut written);
                body = serde_json::to_vec(&written)?;
            }
            client.send(Request::from_parts(parts, body.into())).await.map_err(BoxError::from)
        }
    });
    Client::new(service, "default")
}

fn write_as_before(written: &mut Value) {
    if let Some(conditions) = written.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        for condition in conditions {
            condition["message"] = json!("in the words of the version before");
        }
    }
    if written.pointer("/metadata/ownerReferences").is_some() {
        written["metadata"]["labels"]["version"] = json!("before");
        written["metadata"]["annotations"]["reknit.dev/applied"] = json!("the hash of the version before");
    }
}

/// A namespace with the objects of an example.
struct World<'a> {
    plane: &'a ControlPlane,
    client: Client,
    namespace: String,
    example: &'static str,
    /// The objects of `example.yaml`, by Kind and name.
    objects: BTreeMap<(String, String), ApiResource>,
}

impl<'a> World<'a> {
    async fn new(plane: &'a ControlPlane, example: &'static str) -> Self {
        let namespace = plane.namespace(example).await.expect("a namespace");
        let (client, objects) = (plane.client().expect("a client"), BTreeMap::new());
        let mut world = Self { plane, client, namespace, example, objects };
        let yaml = std::fs::read_to_string(file(example, "example.yaml")).expect("the example");
        for object in serde_saphyr::from_multiple::<DynamicObject>(&yaml).expect("objects") {
            let types = object.types.clone().expect("a Kind");
            let resource = world.resource(&types.api_version, &types.kind).await.0;
            let api: Api<DynamicObject> =
                Api::namespaced_with(world.client.clone(), &world.namespace, &resource);
            api.create(&PostParams::default(), &object).await.expect("the object is created");
            world.objects.insert((types.kind, object.name_any()), resource);
        }
        world
    }

    async fn resource(&self, api_version: &str, kind: &str) -> (ApiResource, bool) {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let found = pinned_kind(&self.client, &GroupVersionKind::gvk(group, version, kind)).await;
        let (resource, capabilities) = found.expect("the Kind is served");
        (resource, capabilities.scope == Scope::Namespaced)
    }

    fn program(&self) -> Main {
        program_of(self.example).provide(select().namespace(&self.namespace))
    }

    async fn change(&self) {
        let (kind, name, change) = change_of(self.example);
        let resource = &self.objects[&(kind.to_owned(), name.to_owned())];
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, resource);
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.expect("the object is changed");
    }

    /// The resourceVersions of all objects in the namespace, by Kind and name, but those of events.
    async fn versions(&self) -> BTreeMap<(String, String), Option<String>> {
        let discovery = Discovery::new(self.client.clone()).exclude(&["events.k8s.io"]).run().await;
        let discovery = discovery.expect("the Kinds");
        let kinds = discovery.groups().flat_map(|group| group.recommended_resources());
        let mut versions = BTreeMap::new();
        for (resource, capabilities) in kinds {
            let is_listed =
                capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::LIST);
            if !is_listed || resource.kind == "Event" {
                continue;
            }
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
            for object in api.list_metadata(&ListParams::default()).await.expect("a list").items {
                versions.insert((resource.kind.clone(), object.name_any()), object.resource_version());
            }
        }
        versions
    }

    /// Plans the example. Fails if an object has changed, or if a write was not a dry run.
    async fn plan(&self) -> (u8, String, Value) {
        let (before, logged) = (self.versions().await, writes(self.plane).len());
        let planned = self.plan_unchecked().await;
        assert_eq!(self.versions().await, before, "{}", self.example);
        let writes = writes(self.plane);
        let real: Vec<_> = writes.iter().skip(logged).filter(|event| !is_dry_run(event)).collect();
        assert!(real.is_empty(), "{}: {real:#?}", self.example);
        planned
    }

    async fn plan_unchecked(&self) -> (u8, String, Value) {
        let planned = reknit::sharedmain::internal::plan(self.program(), self.client.clone().into()).await;
        let planned = planned.expect("a plan");
        println!("{}:\n{}", self.example, planned.1);
        planned
    }

    /// Runs the controllers, without the webhook, until no key has been queued for a second.
    async fn run(&self, client: Client) {
        let (controllers, informers) = {
            // The default of a plan without one.
            let namespace = Some("knative-eventing".to_owned());
            let cx = Context::builder(self.example, client).system_namespace(namespace).build();
            (self.program().construct(&cx).expect("the controllers").0, cx.informers())
        };
        informers.start();
        let controllers: Vec<_> =
            controllers.iter().filter(|controller| controller.name() != "webhook").collect();
        for informer in controllers.iter().flat_map(|controller| controller.informers()) {
            informer.synced().await;
        }
        let mut idle = 0;
        while idle < 3 {
            idle += 1;
            for controller in &controllers {
                for key in controller.take_queued() {
                    idle = 0;
                    let _ = controller.once(&key).await;
                }
            }
            if idle > 0 {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }

    /// Checks that a real run does what the plan says, and that nothing is left to plan. Returns true if there were changes.
    async fn plan_and_run(&self) -> bool {
        if self.example == "cronjob" {
            wait_for_the_first_half_of_a_minute().await;
        }
        let (status, text, json) = self.plan().await;
        let has_changes = json["objects"].as_array().is_some_and(|objects| !objects.is_empty());
        assert_eq!(status, if has_changes { 3 } else { 0 }, "{}: {text}", self.example);
        let before = self.versions().await;
        self.run(self.client.clone()).await;
        self.compare(&json).await;
        self.assert_planned(&json, before).await;
        let (status, text, _) = self.plan().await; // an example may record events
        assert!(status == 0 && text.ends_with(NOTHING), "{}: {status}: {text}", self.example);
        has_changes
    }

    /// Checks that the plan has each object whose state is not as before the run.
    async fn assert_planned(&self, plan: &Value, before: BTreeMap<(String, String), Option<String>>) {
        let after = self.versions().await;
        let names = before.keys().chain(after.keys());
        for (kind, name) in names.filter(|&name| before.get(name) != after.get(name)) {
            let is_planned = plan["objects"].as_array().expect("a list").iter().any(|object| {
                let key = object["key"].as_str().unwrap_or_default();
                let planned = key.rsplit('/').next().unwrap_or_default();
                let prefix = planned.strip_suffix("(generated)");
                let is_its = *name == planned || prefix.is_some_and(|prefix| name.starts_with(prefix));
                object["kind"] == **kind && is_its
            });
            assert!(is_planned, "{}: {kind} {name} has changed and was not planned: {plan:#}", self.example);
        }
    }

    /// Checks that the live objects are as the plan says.
    async fn compare(&self, plan: &Value) {
        for object in plan["objects"].as_array().expect("a list") {
            let text = |field: &str| object[field].as_str().unwrap_or_default();
            let (resource, is_namespaced) = self.resource(text("apiVersion"), text("kind")).await;
            let name = text("key").rsplit('/').next().expect("a name");
            let api: Api<DynamicObject> = match is_namespaced {
                true => Api::namespaced_with(self.client.clone(), &self.namespace, &resource),
                false => Api::all_with(self.client.clone(), &resource),
            };
            if text("action") == "delete" {
                assert!(api.get_opt(name).await.expect("an answer").is_none(), "{}", text("key"));
                continue;
            }
            let prefix = name.strip_suffix("(generated)");
            let live = api.list(&ListParams::default()).await.expect("a list").items;
            let mut candidates = live.iter().filter(|live| {
                live.name_any() == name || prefix.is_some_and(|prefix| live.name_any().starts_with(prefix))
            });
            let differences: Vec<_> = candidates
                .clone()
                .map(|live| difference("", &object["after"], &serde_json::to_value(live).expect("JSON")))
                .collect();
            assert!(candidates.next().is_some(), "{} {} exists", text("kind"), text("key"));
            assert!(
                differences.iter().any(Option::is_none),
                "{} {}: {differences:?}",
                text("kind"),
                text("key")
            );
        }
    }
}

/// The first difference of a planned object from the live one, without what the API server chooses. Items of a list do not
/// name their Kind.
fn difference(path: &str, planned: &Value, live: &Value) -> Option<String> {
    const CHOSEN: [&str; 4] =
        [".spec.clusterIP", ".spec.clusterIPs", ".metadata.managedFields", ".metadata.generation"];
    match (planned, live) {
        _ if CHOSEN.contains(&path) || [".apiVersion", ".kind"].contains(&path) => None,
        (Value::String(planned), _)
            if ["(generated)", "(uid of", "(now)"].iter().any(|text| planned.contains(text)) =>
        {
            None
        }
        (Value::Object(planned), Value::Object(live)) => {
            let mut names: Vec<_> = planned.keys().collect();
            if !["", ".metadata"].contains(&path) {
                names.extend(live.keys());
            }
            // The annotation has a hash of the owner's uid.
            names.retain(|name| *name != "reknit.dev/applied");
            names.iter().find_map(|name| {
                let of =
                    |fields: &serde_json::Map<String, Value>| fields.get(*name).cloned().unwrap_or_default();
                difference(&format!("{path}.{name}"), &of(planned), &of(live))
            })
        }
        (Value::Array(planned), Value::Array(live)) if planned.len() == live.len() => planned
            .iter()
            .zip(live)
            .find_map(|(planned, live)| difference(&format!("{path}[]"), planned, live)),
        _ => (planned != live).then(|| format!("{path}: planned {planned}, is {live}")),
    }
}

/// The CronJob creates a Job each minute, which would come between a plan and the run.
async fn wait_for_the_first_half_of_a_minute() {
    eventually("the first half of a minute", Duration::from_secs(60), async || {
        let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() % 60);
        if second < 30 { Ok(()) } else { Err(format!("second {second}")) }
    })
    .await;
}

/// The writes of the tests so far, from the audit log.
fn writes(plane: &ControlPlane) -> Vec<Value> {
    let events = plane.audit_events().expect("the audit log");
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

/// A control plane with the definitions of the examples, which logs writes with their bodies.
async fn control_plane() -> ControlPlane {
    let audited = ControlPlane::builder().audited().arg(format!("--audit-policy-file={AUDIT_POLICY}"));
    let plane = audited.start().await.expect("a control plane");
    for example in EXAMPLES {
        plane.apply_path(file(example, "crd.yaml")).await.expect("the definition");
    }
    plane
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_does_what_its_plan_says() {
    let plane = control_plane().await;
    let mut changing = 0;
    for example in EXAMPLES {
        let world = World::new(&plane, example).await;
        changing += usize::from(world.plan_and_run().await);
        world.change().await;
        changing += usize::from(world.plan_and_run().await);
    }
    assert!(changing > EXAMPLES.len(), "{changing} plans had changes");
}

/// cloud-ide writes only in its gRPC server, a task, which a plan does not run. So no version of it has anything to plan.
#[tokio::test(flavor = "multi_thread")]
async fn cloud_ide_plans_nothing() {
    let plane = control_plane().await;
    plane.apply_path(file("cloud-ide", "namespace.yaml")).await.expect("the namespace");
    let client = plane.client().expect("a client");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "cloud-ide");
    let space = json!({
        "metadata": {"name": "space", "labels": {"kind": "cloud-ide"}},
        "spec": {"containers": [{"name": "ide", "image": "ide:1"}]},
    });
    let space = serde_json::from_value(space).expect("a Pod");
    pods.create(&PostParams::default(), &space).await.expect("the space is created");
    let planned = reknit::sharedmain::internal::plan(cloud_ide::program(), client.into()).await;
    let (status, text, json) = planned.expect("a plan");
    assert_eq!((status, &*text), (0, NOTHING));
    assert_eq!(json["keys"][0]["key"], "cloud-ide/space");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_version_of_each_example_does_what_its_plan_says() {
    let plane = control_plane().await;
    for example in EXAMPLES {
        let world = World::new(&plane, example).await;
        world.run(version_before(world.client.clone())).await;
        let has_changes = world.plan_and_run().await;
        assert!(has_changes || example == "mydemo", "{example}"); // no version of it writes anything
    }
}
