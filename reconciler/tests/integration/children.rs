//! Children applied on a real API server, and the requests that applying them takes.

use std::sync::{Arc, Mutex};

use futures::{FutureExt, future::OptionFuture};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        rbac::v1::Role,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
    client::Body,
    core::NamespaceResourceScope,
};
use reknit_injection::{Cached, Context, Informer, Selection, select};
use reknit_reconciler::{Controller, Error, Key, NotApplied, Outcome, Owned, ReconcileKind, Result};
use reknit_testing::{ControllerExt, eventually};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Fixture, TIMEOUT};

/// The Deployment to apply, which a test may change between passes.
type DesiredDeployment = Arc<Mutex<Value>>;

/// Applies the desired Deployment for every owner.
struct Applier {
    deployments: Owned<Deployment>,
    desired: DesiredDeployment,
}

impl ReconcileKind for Applier {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, owner: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let desired = serde_json::from_value(self.desired.lock().unwrap().clone())?;
        self.deployments.apply(owner, desired).await?;
        Ok(Outcome::done())
    }
}

/// A process whose controller runs passes on demand, and whose requests for single Deployments are recorded.
struct Process {
    controller: Controller,
    deployments: Informer<Deployment>,
    owners: Informer<ConfigMap>,
    recorded: Arc<Mutex<Vec<String>>>,
    key: Key,
}

impl Process {
    /// Starts a process that watches the selected Deployments and whose cache has the owner.
    async fn start(fixture: &Fixture, desired: &DesiredDeployment, selection: Selection) -> Self {
        let (client, recorded) = recording_client(&fixture.client);
        let (process, informers) = {
            let cx = Context::new("applier", client);
            (Self::new(&cx, fixture, desired, selection, recorded), cx.informers())
        };
        informers.start();
        process.deployments.synced().await;
        eventually("the owner in the cache", TIMEOUT, async || process.owners.get(&process.key)).await;
        process.take_requests();
        process
    }

    /// Creates a process whose cache has these two objects, and is not updated by a watch.
    fn without_watch(
        fixture: &Fixture,
        desired: &DesiredDeployment,
        owner: &ConfigMap,
        child: &Deployment,
    ) -> Self {
        let (client, recorded) = recording_client(&fixture.client);
        let cached = vec![serde_json::to_value(owner).unwrap(), serde_json::to_value(child).unwrap()];
        let cx = Context::preloaded("applier", client, cached);
        Self::new(&cx, fixture, desired, select(), recorded)
    }

    fn new(
        cx: &Context,
        fixture: &Fixture,
        desired: &DesiredDeployment,
        selection: Selection,
        recorded: Arc<Mutex<Vec<String>>>,
    ) -> Self {
        let selection = selection.namespace(&fixture.namespace);
        let deployments = cx.informer(selection);
        let mut build = Controller::selected::<ConfigMap>(cx, select().namespace(&fixture.namespace));
        let applier = Applier { deployments: build.owns_in(&deployments), desired: desired.clone() };
        let controller = build.reconciler(applier).build();
        let owners = cx.informer(select().namespace(&fixture.namespace));
        Self { controller, deployments, owners, recorded, key: Key::new(fixture.namespace.as_str(), "owner") }
    }

    async fn pass(&self) -> Result<Outcome> {
        self.controller.once(&self.key).await
    }

    /// Runs a pass that succeeds, and returns its requests.
    async fn pass_requests(&self) -> Vec<String> {
        let _ = self.pass().await.unwrap();
        self.take_requests()
    }

    /// Runs a pass that fails without writing, and returns its error.
    async fn pass_error(&self) -> Error {
        let error = self.pass().await.unwrap_err();
        let recorded = self.take_requests();
        assert!(recorded.iter().all(|request| request.starts_with("GET")), "{recorded:?}");
        error
    }

    /// Takes the requests for single Deployments that were recorded since the last call.
    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.recorded.lock().unwrap())
    }

    /// Waits until the cached child meets the condition.
    async fn wait_for_child(&self, what: &str, condition: impl Fn(Option<&Deployment>) -> bool) {
        let child = Key { name: "child".into(), ..self.key.clone() };
        eventually(what, TIMEOUT, async || condition(self.deployments.get(&child).as_deref())).await;
    }

    async fn wait_until_owner_is_enqueued(&self, cause: &str) {
        eventually(format!("the owner to be enqueued after {cause}"), TIMEOUT, async || {
            self.controller.take_queued().contains(&self.key)
        })
        .await;
    }
}

/// Returns a client that records its requests for single Deployments, as the method and the name.
fn recording_client(client: &Client) -> (Client, Arc<Mutex<Vec<String>>>) {
    let (client, recorded) = (client.clone(), Arc::<Mutex<Vec<String>>>::default());
    let log = recorded.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let path = request.uri().path().to_owned();
        if let Some(name) = path.rsplit_once("/deployments/").map(|(_, name)| name) {
            log.lock().unwrap().push(format!("{} {name}", request.method()));
        }
        let client = client.clone();
        async move { client.send(request).await }
    });
    (Client::new(service, "default"), recorded)
}

/// Returns a client that awaits the hook before it sends its first patch.
fn client_with_hook_before_patch(client: &Client, hook: impl Future<Output = ()> + Send + 'static) -> Client {
    let (client, hook) = (client.clone(), Arc::new(Mutex::new(Some(hook.boxed()))));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let hook = (*request.method() == http::Method::PATCH).then(|| hook.lock().unwrap().take()).flatten();
        let client = client.clone();
        async move {
            OptionFuture::from(hook).await;
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

/// Returns the Deployments of a controller of this component. Its cache is empty, and no watch updates it.
fn deployments_of(component: &str, client: Client) -> Owned<Deployment> {
    Controller::of::<ConfigMap>(&Context::preloaded(component, client, vec![])).owns()
}

fn desired_deployment(replicas: u8) -> DesiredDeployment {
    Arc::new(Mutex::new(json!({
        "metadata": {"name": "child", "labels": {"one": "1", "two": "2"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "a", "image": "a", "ports": [{"containerPort": 80}]}]},
            },
        },
    })))
}

fn set(desired: &DesiredDeployment, pointer: &str, value: Value) {
    *desired.lock().unwrap().pointer_mut(pointer).unwrap() = value;
}

/// The cause of a failed pass.
fn not_applied(error: &Error) -> &NotApplied {
    error.source().downcast_ref().unwrap()
}

impl Fixture {
    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn child(&self) -> Deployment {
        self.deployments().get("child").await.unwrap()
    }

    async fn replicas(&self) -> Option<i32> {
        self.child().await.spec.unwrap().replicas
    }

    /// Changes the child by another client.
    async fn change_child(&self, patch: Value) {
        self.deployments().patch("child", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Creates a Deployment of the child's name by another client.
    async fn create_foreign_deployment(&self, owner: Option<OwnerReference>, labels: Value) -> Deployment {
        let mut foreign: Deployment =
            serde_json::from_value(desired_deployment(5).lock().unwrap().clone()).unwrap();
        foreign.metadata.labels = serde_json::from_value(labels).unwrap();
        foreign.metadata.owner_references = owner.map(|owner| vec![owner]);
        self.deployments().create(&PostParams::default(), &foreign).await.unwrap()
    }

    async fn assert_unchanged(&self, foreign: &Deployment) {
        assert_eq!(self.child().await.resource_version(), foreign.resource_version());
    }
}

fn controlled_by(kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

const APPLY: &str = "PATCH child";
const NO_REQUESTS: [&str; 0] = [];

#[tokio::test]
async fn a_child_is_created_once_and_cached_before_the_next_pass() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let process = Process::start(&fixture, &desired_deployment(3), select()).await;
    assert_eq!(process.pass_requests().await, ["GET child", APPLY]);
    for _ in 0..3 {
        assert_eq!(process.pass_requests().await, NO_REQUESTS);
    }
    let mut expected = controlled_by("ConfigMap", "owner", &owner.uid().unwrap());
    expected.block_owner_deletion = Some(true);
    assert_eq!(fixture.child().await.owner_references(), [expected]);
    let managers = fixture.child().await.managed_fields().to_vec();
    assert_eq!(managers[0].manager, Some(format!("applier-{}", owner.uid().unwrap())));
    assert_eq!(managers[0].operation.as_deref(), Some("Apply"));
}

#[tokio::test]
async fn a_new_process_sends_nothing_for_an_unchanged_child() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let _ = Process::start(&fixture, &desired, select()).await.pass_requests().await;
    assert_eq!(Process::start(&fixture, &desired, select()).await.pass_requests().await, NO_REQUESTS);
}

#[tokio::test]
async fn changes_of_applied_fields_are_reverted_and_other_fields_are_kept() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let process = Process::start(&fixture, &desired_deployment(3), select()).await;
    let _ = process.pass_requests().await;
    for drift in [
        json!({"spec": {"replicas": 9}}),
        json!({"metadata": {"labels": {"one": null}}}),
        json!({"metadata": {"annotations": {"reknit.dev/applied": null}}}),
        json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}}),
    ] {
        let before = fixture.child().await.resource_version();
        let patch = Patch::Merge(&drift);
        let changed = fixture.deployments().patch("child", &PatchParams::default(), &patch).await.unwrap();
        assert_ne!(changed.resource_version(), before);
        process
            .wait_for_child("the drift", |child| {
                child.and_then(ResourceExt::resource_version) == changed.resource_version()
            })
            .await;
        assert_eq!(process.pass_requests().await, [APPLY], "{drift}");
        assert_eq!(fixture.replicas().await, Some(3));
        let child = fixture.child().await;
        assert_eq!(child.labels()["one"], "1");
        let containers = child.spec.unwrap().template.spec.unwrap().containers;
        assert_eq!(containers[0].image.as_deref(), Some("a"));
        assert_eq!(containers[0].ports.as_ref().unwrap()[0].container_port, 80);
    }
    fixture.change_child(json!({"metadata": {"labels": {"theirs": "x"}}, "spec": {"paused": true}})).await;
    process
        .wait_for_child("the other client's label", |child| {
            child.is_some_and(|child| child.labels().contains_key("theirs"))
        })
        .await;
    assert_eq!(
        process.pass_requests().await,
        [APPLY],
        "not applied, although the change may be in an atomic list or map"
    );
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    assert_eq!(fixture.child().await.spec.unwrap().paused, Some(true));
    fixture.change_child(json!({"metadata": {"labels": {"theirs": "y"}}})).await;
    process
        .wait_for_child("the other client's label", |child| {
            child.is_some_and(|child| child.labels()["theirs"] == "y")
        })
        .await;
    assert_eq!(
        process.pass_requests().await,
        NO_REQUESTS,
        "applied after a change of another manager's label"
    );
}

/// Applies the child, changes it by another client, and checks that the next apply reverts the change.
async fn assert_drift_is_reverted<T>(child: Value, drift: Value)
where
    T: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
{
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let cx = Context::preloaded("applier", fixture.client.clone(), vec![]);
    let children = Controller::of::<ConfigMap>(&cx).owns::<T>();
    let apply = async || {
        let applied = children.apply(&owner, serde_json::from_value(child.clone()).unwrap()).await.unwrap();
        let mut applied = serde_json::to_value(&*applied).unwrap();
        (applied["metadata"].take()["resourceVersion"].take(), applied)
    };
    let created = apply().await;
    assert_eq!(apply().await, created, "a second apply changed the child");
    let (others, own) = (&fixture.client, &cx.client());
    let [others, own]: [Api<T>; 2] =
        [others, own].map(|client| Api::namespaced(client.clone(), &fixture.namespace));
    others.patch("child", &PatchParams::default(), &Patch::Merge(&drift)).await.unwrap();
    let drifted = serde_json::to_value(own.get("child").await.unwrap()).unwrap();
    assert_ne!(drifted["metadata"]["resourceVersion"], created.0);
    assert_eq!(apply().await.1, created.1, "{drift}");
}

#[tokio::test]
async fn additions_to_atomic_lists_and_maps_are_reverted() {
    let child = |field: &str, value: Value| json!({"metadata": {"name": "child"}, field: value});
    assert_drift_is_reverted::<Service>(
        child("spec", json!({"selector": {"app": "a"}, "ports": [{"port": 80}]})),
        json!({"spec": {"selector": {"none": "such"}}}),
    )
    .await;
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let mut narrowed = rule.clone();
    narrowed["resourceNames"] = json!(["one"]);
    assert_drift_is_reverted::<Role>(child("rules", json!([rule])), json!({"rules": [narrowed]})).await;
    assert_drift_is_reverted::<NetworkPolicy>(
        child("spec", json!({"podSelector": {}})),
        json!({"spec": {"podSelector": {"matchLabels": {"app": "a"}}}}),
    )
    .await;
}

#[tokio::test]
async fn changes_of_a_secret_with_string_data_are_reverted() {
    let secret = json!({"metadata": {"name": "child"}, "data": {"a": "YQ=="}, "stringData": {"b": "b"}});
    assert_drift_is_reverted::<Secret>(secret, json!({"data": {"b": "YQ=="}})).await;
}

#[tokio::test]
async fn fields_that_are_no_longer_applied_are_removed_by_a_new_process_too() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    let _ = process.pass_requests().await;
    fixture.change_child(json!({"metadata": {"labels": {"theirs": "x"}}})).await;
    set(&desired, "/metadata/labels", json!({"one": "1"}));
    let process = Process::start(&fixture, &desired, select()).await;
    assert_eq!(process.pass_requests().await, [APPLY]);
    let labels = fixture.child().await.labels().clone();
    assert_eq!(labels, [("one".into(), "1".into()), ("theirs".into(), "x".into())].into());
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
}

#[tokio::test]
async fn a_value_that_the_api_server_normalises_is_applied_once_per_process() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    set(
        &desired,
        "/spec/template/spec/containers/0",
        json!({
            "name": "a", "image": "a", "resources": {"limits": {"cpu": "1000m"}},
        }),
    );
    let process = Process::start(&fixture, &desired, select()).await;
    assert_eq!(process.pass_requests().await, ["GET child", APPLY]);
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    let version = fixture.child().await.resource_version();
    let process = Process::start(&fixture, &desired, select()).await;
    assert_eq!(process.pass_requests().await, [APPLY]);
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    assert_eq!(fixture.child().await.resource_version(), version, "the second process changed the child");
    fixture.change_child(json!({"spec": {"replicas": 9}})).await;
    process
        .wait_for_child("the drift", |child| {
            child.is_some_and(|child| child.spec.as_ref().unwrap().replicas == Some(9))
        })
        .await;
    assert_eq!(process.pass_requests().await, [APPLY]);
}

#[tokio::test]
async fn an_object_with_another_controller_is_kept_until_it_is_deleted() {
    let uid = "01234567-89ab-cdef-0123-456789abcdef";
    let earlier_owner = controlled_by("ConfigMap", "owner", uid); // an earlier owner with the same name
    for controller in [Some(controlled_by("ServiceAccount", "default", uid)), Some(earlier_owner), None] {
        let fixture = Fixture::new("children").await;
        fixture.create("owner", &[]).await;
        let foreign = fixture.create_foreign_deployment(controller.clone(), json!({})).await;
        let process = Process::start(&fixture, &desired_deployment(3), select()).await;
        let error = process.pass_error().await;
        assert!(
            matches!(not_applied(&error), NotApplied::Taken { by, .. } if by.as_deref() == controller.as_ref()),
            "{error}"
        );
        let expected = format!(
            "Deployment {0}/child already exists and is not controlled by ConfigMap {0}/owner",
            fixture.namespace
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        fixture.assert_unchanged(&foreign).await;
        process.controller.take_queued();
        fixture.deployments().delete("child", &DeleteParams::default()).await.unwrap();
        process.wait_until_owner_is_enqueued("the foreign object is deleted").await;
        assert_eq!(process.pass_requests().await, ["GET child", APPLY]);
    }
}

#[tokio::test]
async fn an_object_outside_the_selection_is_not_taken_over() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let foreign = fixture.create_foreign_deployment(None, json!({"other": "label"})).await;
    let process = Process::start(&fixture, &desired_deployment(3), select().label("one", "1")).await;
    assert!(matches!(not_applied(&process.pass_error().await), NotApplied::Taken { by: None, .. }));
    fixture.assert_unchanged(&foreign).await;
}

#[tokio::test]
async fn an_object_that_replaced_the_child_while_the_cache_is_stale_is_not_changed() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let _ = Process::start(&fixture, &desired, select()).await.pass_requests().await;
    let before = fixture.child().await;
    fixture.deployments().delete("child", &DeleteParams::default()).await.unwrap();
    set(&desired, "/spec/replicas", json!(4));
    let process = Process::without_watch(&fixture, &desired, &owner, &before);
    let gone = process.pass().await.unwrap_err();
    assert!(gone.is_conflict(), "the apply to the deleted child is not a conflict: {:?}", not_applied(&gone));
    assert!(fixture.deployments().get_opt("child").await.unwrap().is_none());
    let foreign = fixture.create_foreign_deployment(None, json!({})).await;
    let replaced = process.pass().await.unwrap_err();
    assert!(matches!(not_applied(&replaced), NotApplied::Taken { by: None, .. }), "{replaced}");
    fixture.assert_unchanged(&foreign).await;
}

#[tokio::test]
async fn of_two_owners_that_create_the_same_child_the_later_gets_an_error_in_the_same_pass() {
    let fixture = Fixture::new("children").await;
    let (first, later) = (fixture.create("first", &[]).await, fixture.create("later", &[]).await);
    let child =
        |replicas| serde_json::from_value(desired_deployment(replicas).lock().unwrap().clone()).unwrap();
    for (component, replicas) in [("another", 3), ("another", 4), ("applier", 3), ("applier", 4)] {
        let (deployments, owner) = (deployments_of(component, fixture.client.clone()), first.clone());
        let client = client_with_hook_before_patch(&fixture.client, async move {
            deployments.apply(&owner, child(3)).await.unwrap();
        });
        let refused = deployments_of("applier", client).apply(&later, child(replicas)).await.unwrap_err();
        let NotApplied::Taken { by: Some(by), .. } = refused else { panic!("{component}: {refused:?}") };
        assert_eq!(Some(by.uid), first.uid());
        fixture.deployments().delete("child", &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_applied_for_a_terminating_owner() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &["demo.reknit.dev/stays"]).await;
    fixture.maps().delete("owner", &DeleteParams::default()).await.unwrap();
    let terminating = fixture.maps().get("owner").await.unwrap();
    let cx = Context::preloaded("applier", fixture.client.clone(), vec![]);
    let deployments = Controller::of::<ConfigMap>(&cx).owns::<Deployment>();
    let child = serde_json::from_value(desired_deployment(3).lock().unwrap().clone()).unwrap();
    let refused = deployments.apply(&terminating, child).await.unwrap_err();
    assert!(matches!(refused, NotApplied::OwnerDeleted { .. }), "{refused}");
    assert!(fixture.deployments().get_opt("child").await.unwrap().is_none());
    fixture.merge("owner", json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn a_terminating_child_is_left_alone_and_created_again_afterwards() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    let _ = process.pass_requests().await;
    let first = fixture.child().await;
    fixture.change_child(json!({"metadata": {"finalizers": ["demo.reknit.dev/stays"]}})).await;
    fixture.deployments().delete("child", &DeleteParams::default()).await.unwrap();
    process
        .wait_for_child("the child to be terminating", |child| {
            child.is_some_and(|child| child.metadata.deletion_timestamp.is_some())
        })
        .await;
    set(&desired, "/spec/replicas", json!(4));
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    process.controller.take_queued();
    fixture.change_child(json!({"metadata": {"finalizers": null}})).await;
    process.wait_until_owner_is_enqueued("the child is gone").await;
    process.wait_for_child("the child to be gone", |child| child.is_none()).await;
    assert_eq!(process.pass_requests().await, ["GET child", APPLY]);
    assert_ne!(fixture.child().await.uid(), first.uid());
    assert_eq!(fixture.replicas().await, Some(4));
}

#[tokio::test]
async fn a_change_of_an_immutable_field_is_an_error() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    let _ = process.pass_requests().await;
    set(&desired, "/spec/selector/matchLabels", json!({"app": "b"}));
    set(&desired, "/spec/template/metadata/labels", json!({"app": "b"}));
    let error = process.pass().await.unwrap_err();
    let NotApplied::Refused { child, source } = not_applied(&error) else { panic!("{error}") };
    assert_eq!(*child, format!("Deployment {}/child", fixture.namespace));
    assert!(source.to_string().contains("field is immutable"), "{source}");
    assert!(!error.is_conflict() && !error.is_permanent());
}

#[tokio::test]
async fn a_child_without_a_name_or_in_another_namespace_is_refused_without_a_request() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    set(&desired, "/metadata", json!({"name": "child", "namespace": "default"}));
    let elsewhere = process.pass().await.unwrap_err();
    assert!(matches!(not_applied(&elsewhere), NotApplied::OtherNamespace { .. }), "{elsewhere}");
    set(&desired, "/metadata", json!({"generateName": "child-"}));
    let nameless = process.pass().await.unwrap_err();
    assert_eq!(nameless.to_string(), "a Deployment without a name cannot be applied");
    assert_eq!(process.take_requests(), NO_REQUESTS);
}

#[tokio::test]
async fn an_object_that_was_read_can_be_applied_again() {
    // An object that was read has a uid, a resourceVersion, managedFields and all other metadata.
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    let _ = process.pass_requests().await;
    let mut read = fixture.child().await;
    read.spec.as_mut().unwrap().replicas = Some(4);
    *desired.lock().unwrap() = serde_json::to_value(read).unwrap();
    assert_eq!(process.pass_requests().await, [APPLY]);
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    assert_eq!(fixture.replicas().await, Some(4));
    for _ in 0..3 {
        *desired.lock().unwrap() = serde_json::to_value(fixture.child().await).unwrap();
        assert_eq!(
            process.pass_requests().await,
            NO_REQUESTS,
            "the hash annotation that was read counts as a change"
        );
    }
}

#[tokio::test]
async fn a_child_of_another_kind_needs_no_spec() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let cx =
        Context::preloaded("applier", fixture.client.clone(), vec![serde_json::to_value(&owner).unwrap()]);
    let accounts = Controller::of::<ConfigMap>(&cx).owns::<ServiceAccount>();
    let metadata = ObjectMeta { name: Some("child".into()), ..ObjectMeta::default() };
    let account =
        ServiceAccount { metadata, automount_service_account_token: Some(false), ..Default::default() };
    let created = accounts.apply(&owner, account).await.unwrap();
    assert_eq!(created.namespace().as_deref(), Some(fixture.namespace.as_str()));
    assert_eq!(accounts.of(&owner).count(), 1, "the created child is not in the cache");
}
