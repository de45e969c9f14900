//! Applied children on a real API server, and the requests that they take.

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

use crate::{Place, SOON};

type Wanted = Arc<Mutex<Value>>;

/// Applies one Deployment of the test for every owner.
struct Applies {
    deployments: Owned<Deployment>,
    wanted: Wanted,
}

impl ReconcileKind for Applies {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, owner: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let wanted = serde_json::from_value(self.wanted.lock().unwrap().clone())?;
        self.deployments.apply(owner, wanted).await?;
        Ok(Outcome::done())
    }
}

/// A process whose controller runs passes when the test asks for them. The requests of its client are recorded.
struct Process {
    controller: Controller,
    deployments: Informer<Deployment>,
    owners: Informer<ConfigMap>,
    asked: Arc<Mutex<Vec<String>>>,
    key: Key,
}

impl Process {
    /// A process that watches the selection and has seen the owner.
    async fn start(place: &Place, wanted: &Wanted, which: Selection) -> Self {
        let (client, asked) = noting(&place.client);
        let (process, informers) = {
            let cx = Context::new("applier", client);
            (Self::made(&cx, place, wanted, which, asked), cx.informers())
        };
        informers.start();
        process.deployments.synced().await;
        eventually("the owner in the cache", SOON, async || process.owners.get(&process.key)).await;
        process.requests();
        process
    }

    /// A process whose cache has these objects and no watch.
    fn blind(place: &Place, wanted: &Wanted, owner: &ConfigMap, child: &Deployment) -> Self {
        let (client, asked) = noting(&place.client);
        let held = vec![serde_json::to_value(owner).unwrap(), serde_json::to_value(child).unwrap()];
        let cx = Context::preloaded("applier", client, held);
        Self::made(&cx, place, wanted, select(), asked)
    }

    fn made(
        cx: &Context,
        place: &Place,
        wanted: &Wanted,
        which: Selection,
        asked: Arc<Mutex<Vec<String>>>,
    ) -> Self {
        let selection = which.namespace(&place.namespace);
        let deployments = cx.informer(selection);
        let mut build = Controller::selected::<ConfigMap>(cx, select().namespace(&place.namespace));
        let applies = Applies { deployments: build.owns_in(&deployments), wanted: wanted.clone() };
        let controller = build.reconciler(applies).build();
        let owners = cx.informer(select().namespace(&place.namespace));
        Self { controller, deployments, owners, asked, key: Key::new(place.namespace.as_str(), "owner") }
    }

    async fn pass(&self) -> Result<Outcome> {
        self.controller.once(&self.key).await
    }

    /// Runs a successful pass, and returns its requests.
    async fn passes(&self) -> Vec<String> {
        let _ = self.pass().await.unwrap();
        self.requests()
    }

    /// Runs a pass that fails without writing, and returns its error.
    async fn refusal(&self) -> Error {
        let error = self.pass().await.unwrap_err();
        let asked = self.requests();
        assert!(asked.iter().all(|request| request.starts_with("GET")), "{asked:?}");
        error
    }

    /// The requests since the last call, except for lists and watches.
    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    async fn sees(&self, what: &str, seen: impl Fn(Option<&Deployment>) -> bool) {
        let child = Key { name: "child".into(), ..self.key.clone() };
        eventually(what, SOON, async || seen(self.deployments.get(&child).as_deref())).await;
    }

    async fn wakes(&self, after: &str) {
        eventually(format!("the owner is woken after {after}"), SOON, async || {
            self.controller.queued().contains(&self.key)
        })
        .await;
    }
}

fn noting(client: &Client) -> (Client, Arc<Mutex<Vec<String>>>) {
    let (client, asked) = (client.clone(), Arc::<Mutex<Vec<String>>>::default());
    let noted = asked.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let path = request.uri().path().to_owned();
        if let Some(name) = path.rsplit_once("/deployments/").map(|(_, name)| name) {
            noted.lock().unwrap().push(format!("{} {name}", request.method()));
        }
        let client = client.clone();
        async move { client.send(request).await }
    });
    (Client::new(service, "default"), asked)
}

/// A client that runs this before its first patch is sent.
fn before_the_patch(client: &Client, what: impl Future<Output = ()> + Send + 'static) -> Client {
    let (client, what) = (client.clone(), Arc::new(Mutex::new(Some(what.boxed()))));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let first = (*request.method() == http::Method::PATCH).then(|| what.lock().unwrap().take()).flatten();
        let client = client.clone();
        async move {
            OptionFuture::from(first).await;
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

/// The Deployments of a process whose cache has no watch.
fn deployments_of(component: &str, client: Client) -> Owned<Deployment> {
    Controller::of::<ConfigMap>(&Context::preloaded(component, client, vec![])).owns()
}

fn wanted(replicas: u8) -> Wanted {
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

fn set(wanted: &Wanted, pointer: &str, value: Value) {
    *wanted.lock().unwrap().pointer_mut(pointer).unwrap() = value;
}

fn why(error: &Error) -> &NotApplied {
    error.source().downcast_ref().unwrap()
}

impl Place {
    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn child(&self) -> Deployment {
        self.deployments().get("child").await.unwrap()
    }

    async fn replicas(&self) -> Option<i32> {
        self.child().await.spec.unwrap().replicas
    }

    async fn change(&self, patch: Value) {
        self.deployments().patch("child", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// A Deployment of the child's name, created by another client.
    async fn made_by_somebody(&self, owner: Option<OwnerReference>, labels: Value) -> Deployment {
        let mut somebodys: Deployment = serde_json::from_value(wanted(5).lock().unwrap().clone()).unwrap();
        somebodys.metadata.labels = serde_json::from_value(labels).unwrap();
        somebodys.metadata.owner_references = owner.map(|owner| vec![owner]);
        self.deployments().create(&PostParams::default(), &somebodys).await.unwrap()
    }

    async fn is_untouched(&self, somebodys: &Deployment) {
        assert_eq!(self.child().await.resource_version(), somebodys.resource_version());
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
const NOTHING: [&str; 0] = [];

#[tokio::test]
async fn a_child_is_created_once_and_cached_before_the_next_pass() {
    let place = Place::new("children").await;
    let owner = place.create("owner", &[]).await;
    let process = Process::start(&place, &wanted(3), select()).await;
    assert_eq!(process.passes().await, ["GET child", APPLY]);
    for _ in 0..3 {
        assert_eq!(process.passes().await, NOTHING);
    }
    let mut expected = controlled_by("ConfigMap", "owner", &owner.uid().unwrap());
    expected.block_owner_deletion = Some(true);
    assert_eq!(place.child().await.owner_references(), [expected]);
    let managers = place.child().await.managed_fields().to_vec();
    assert_eq!(managers[0].manager, Some(format!("applier-{}", owner.uid().unwrap())));
    assert_eq!(managers[0].operation.as_deref(), Some("Apply"));
}

#[tokio::test]
async fn a_new_process_sends_nothing_for_an_unchanged_child() {
    let place = Place::new("children").await;
    place.create("owner", &[]).await;
    let wanted = wanted(3);
    let _ = Process::start(&place, &wanted, select()).await.passes().await;
    assert_eq!(Process::start(&place, &wanted, select()).await.passes().await, NOTHING);
}

#[tokio::test]
async fn changes_of_applied_fields_are_reverted_and_other_fields_are_kept() {
    let place = Place::new("children").await;
    place.create("owner", &[]).await;
    let process = Process::start(&place, &wanted(3), select()).await;
    let _ = process.passes().await;
    for drift in [
        json!({"spec": {"replicas": 9}}),
        json!({"metadata": {"labels": {"one": null}}}),
        json!({"metadata": {"annotations": {"reknit.dev/applied": null}}}),
        json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}}),
    ] {
        let before = place.child().await.resource_version();
        let patch = Patch::Merge(&drift);
        let changed = place.deployments().patch("child", &PatchParams::default(), &patch).await.unwrap();
        assert_ne!(changed.resource_version(), before);
        process
            .sees("the drift", |child| {
                child.and_then(ResourceExt::resource_version) == changed.resource_version()
            })
            .await;
        assert_eq!(process.passes().await, [APPLY], "{drift}");
        assert_eq!(place.replicas().await, Some(3));
        let child = place.child().await;
        assert_eq!(child.labels()["one"], "1");
        let containers = child.spec.unwrap().template.spec.unwrap().containers;
        assert_eq!(containers[0].image.as_deref(), Some("a"));
        assert_eq!(containers[0].ports.as_ref().unwrap()[0].container_port, 80);
    }
    place.change(json!({"metadata": {"labels": {"theirs": "x"}}, "spec": {"paused": true}})).await;
    process
        .sees("their label", |child| child.is_some_and(|child| child.labels().contains_key("theirs")))
        .await;
    assert_eq!(process.passes().await, [APPLY], "the change may be in an atomic list or map");
    assert_eq!(process.passes().await, NOTHING);
    assert_eq!(place.child().await.spec.unwrap().paused, Some(true));
    place.change(json!({"metadata": {"labels": {"theirs": "y"}}})).await;
    process.sees("their label", |child| child.is_some_and(|child| child.labels()["theirs"] == "y")).await;
    assert_eq!(process.passes().await, NOTHING, "labels are owned one by one");
}

/// Checks that a change of a child by another client is reverted.
async fn is_put_back<T>(child: Value, drift: Value)
where
    T: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
{
    let place = Place::new("children").await;
    let owner = place.create("owner", &[]).await;
    let cx = Context::preloaded("applier", place.client.clone(), vec![]);
    let children = Controller::of::<ConfigMap>(&cx).owns::<T>();
    let apply = async || {
        let applied = children.apply(&owner, serde_json::from_value(child.clone()).unwrap()).await.unwrap();
        let mut applied = serde_json::to_value(&*applied).unwrap();
        (applied["metadata"].take()["resourceVersion"].take(), applied)
    };
    let made = apply().await;
    assert_eq!(apply().await, made, "nothing was changed");
    let (others, own) = (&place.client, &cx.client());
    let [others, own]: [Api<T>; 2] = [others, own].map(|c| Api::namespaced(c.clone(), &place.namespace));
    others.patch("child", &PatchParams::default(), &Patch::Merge(&drift)).await.unwrap();
    let drifted = serde_json::to_value(own.get("child").await.unwrap()).unwrap();
    assert_ne!(drifted["metadata"]["resourceVersion"], made.0);
    assert_eq!(apply().await.1, made.1, "{drift}");
}

#[tokio::test]
async fn additions_to_atomic_lists_and_maps_are_reverted() {
    let child = |what: &str, is: Value| json!({"metadata": {"name": "child"}, what: is});
    is_put_back::<Service>(
        child("spec", json!({"selector": {"app": "a"}, "ports": [{"port": 80}]})),
        json!({"spec": {"selector": {"none": "such"}}}),
    )
    .await;
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let mut narrowed = rule.clone();
    narrowed["resourceNames"] = json!(["one"]);
    is_put_back::<Role>(child("rules", json!([rule])), json!({"rules": [narrowed]})).await;
    is_put_back::<NetworkPolicy>(
        child("spec", json!({"podSelector": {}})),
        json!({"spec": {"podSelector": {"matchLabels": {"app": "a"}}}}),
    )
    .await;
}

#[tokio::test]
async fn changes_of_a_secret_with_string_data_are_reverted() {
    let secret = json!({"metadata": {"name": "child"}, "data": {"a": "YQ=="}, "stringData": {"b": "b"}});
    is_put_back::<Secret>(secret, json!({"data": {"b": "YQ=="}})).await;
}

#[tokio::test]
async fn fields_that_are_no_longer_applied_are_removed_by_a_new_process_too() {
    let place = Place::new("children").await;
    place.create("owner", &[]).await;
    let wanted = wanted(3);
    let process = Process::start(&place, &wanted, select()).await;
    let _ = process.passes().await;
    place.change(json!({"metadata": {"labels": {"theirs": "x"}}})).await;
    set(&wanted, "/metadata/labels", json!({"one": "1"}));
    let process = Process::start(&place, &wanted, select()).await;
    assert_eq!(process.passes().await, [APPLY]);
    let labels = place.child().await.labels().clone();
    assert_eq!(labels, [("one".into(), "1".into()), ("theirs".into(), "x".into())].into());
    assert_eq!(process.passes().await, NOTHING);
}

#[tokio::test]
async fn a_value_that_the_api_server_normalises_is_applied_once_per_process() {
    let place = Place::new("children").await;
    place.create("owner", &[]).await;
    let wanted = wanted(3);
    set(
        &wanted,
        "/spec/template/spec/containers/0",
        json!({
            "name": "a", "image": "a", "resources": {"limits": {"cpu": "1000m"}},
        }),
    );
    let process = Process::start(&place, &wanted, select()).await;
    assert_eq!(process.passes().await, ["GET child", APPLY]);
    assert_eq!(process.passes().await, NOTHING);
    let version = place.child().await.resource_version();
    let process = Process::start(&place, &wanted, select()).await;
    assert_eq!(process.passes().await, [APPLY]);
    assert_eq!(process.passes().await, NOTHING);
    assert_eq!(place.child().await.resource_version(), version, "the request changed nothing");
    place.change(json!({"spec": {"replicas": 9}})).await;
    process
        .sees("the drift", |child| child.is_some_and(|c| c.spec.as_ref().unwrap().replicas == Some(9)))
        .await;
    assert_eq!(process.passes().await, [APPLY]);
}

#[tokio::test]
async fn an_object_with_another_controller_is_kept_until_it_is_deleted() {
    let uid = "01234567-89ab-cdef-0123-456789abcdef";
    let earlier = controlled_by("ConfigMap", "owner", uid); // the same name, another object
    for by in [Some(controlled_by("ServiceAccount", "default", uid)), Some(earlier), None] {
        let place = Place::new("children").await;
        place.create("owner", &[]).await;
        let somebodys = place.made_by_somebody(by.clone(), json!({})).await;
        let process = Process::start(&place, &wanted(3), select()).await;
        let error = process.refusal().await;
        assert!(
            matches!(why(&error), NotApplied::Taken { by: b, .. } if b.as_deref() == by.as_ref()),
            "{error}"
        );
        let said = format!(
            "Deployment {0}/child already exists and is not controlled by ConfigMap {0}/owner",
            place.namespace
        );
        assert!(error.to_string().starts_with(&said), "{error}");
        place.is_untouched(&somebodys).await;
        process.controller.queued();
        place.deployments().delete("child", &DeleteParams::default()).await.unwrap();
        process.wakes("the name is free").await;
        assert_eq!(process.passes().await, ["GET child", APPLY]);
    }
}

#[tokio::test]
async fn an_object_outside_the_selection_is_not_taken_over() {
    let place = Place::new("children").await;
    place.create("owner", &[]).await;
    let somebodys = place.made_by_somebody(None, json!({"other": "label"})).await;
    let process = Process::start(&place, &wanted(3), select().label("one", "1")).await;
    assert!(matches!(why(&process.refusal().await), NotApplied::Taken { by: None, .. }));
    place.is_untouched(&somebodys).await;
}

#[tokio::test]
async fn an_object_that_replaced_the_child_unnoticed_is_not_changed() {
    let place = Place::new("children").await;
    let owner = place.create("owner", &[]).await;
    let wanted = wanted(3);
    let _ = Process::start(&place, &wanted, select()).await.passes().await;
    let before = place.child().await;
    place.deployments().delete("child", &DeleteParams::default()).await.unwrap();
    set(&wanted, "/spec/replicas", json!(4));
    let process = Process::blind(&place, &wanted, &owner, &before);
    let gone = process.pass().await.unwrap_err();
    assert!(gone.is_conflict(), "it is gone, and not brought back: {:?}", why(&gone));
    assert!(place.deployments().get_opt("child").await.unwrap().is_none());
    let somebodys = place.made_by_somebody(None, json!({})).await;
    let another = process.pass().await.unwrap_err();
    assert!(matches!(why(&another), NotApplied::Taken { by: None, .. }), "{another}");
    place.is_untouched(&somebodys).await;
}

#[tokio::test]
async fn of_two_owners_that_create_the_same_child_the_later_gets_an_error_in_the_same_pass() {
    let place = Place::new("children").await;
    let (first, later) = (place.create("first", &[]).await, place.create("later", &[]).await);
    let child = |replicas| serde_json::from_value(wanted(replicas).lock().unwrap().clone()).unwrap();
    for (component, replicas) in [("another", 3), ("another", 4), ("applier", 3), ("applier", 4)] {
        let (firsts, owner) = (deployments_of(component, place.client.clone()), first.clone());
        let client = before_the_patch(&place.client, async move {
            firsts.apply(&owner, child(3)).await.unwrap();
        });
        let refused = deployments_of("applier", client).apply(&later, child(replicas)).await.unwrap_err();
        let NotApplied::Taken { by: Some(by), .. } = refused else { panic!("{component}: {refused:?}") };
        assert_eq!(Some(by.uid), first.uid());
        place.deployments().delete("child", &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_applied_for_a_terminating_owner() {
    let place = Place::new("children").await;
    place.create("owner", &["demo.reknit.dev/stays"]).await;
    place.maps().delete("owner", &DeleteParams::default()).await.unwrap();
    let going = place.maps().get("owner").await.unwrap();
    let cx = Context::preloaded("applier", place.client.clone(), vec![]);
    let deployments = Controller::of::<ConfigMap>(&cx).owns::<Deployment>();
    let child = serde_json::from_value(wanted(3).lock().unwrap().clone()).unwrap();
    let refused = deployments.apply(&going, child).await.unwrap_err();
    assert!(matches!(refused, NotApplied::OwnerDeleted { .. }), "{refused}");
    assert!(place.deployments().get_opt("child").await.unwrap().is_none());
    place.merge("owner", json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn a_terminating_child_is_left_alone_and_created_again_afterwards() {
    let place = Place::new("children").await;
    place.create("owner", &[]).await;
    let wanted = wanted(3);
    let process = Process::start(&place, &wanted, select()).await;
    let _ = process.passes().await;
    let first = place.child().await;
    place.change(json!({"metadata": {"finalizers": ["demo.reknit.dev/stays"]}})).await;
    place.deployments().delete("child", &DeleteParams::default()).await.unwrap();
    process
        .sees("that it goes", |child| child.is_some_and(|c| c.metadata.deletion_timestamp.is_some()))
        .await;
    set(&wanted, "/spec/replicas", json!(4));
    assert_eq!(process.passes().await, NOTHING);
    process.controller.queued();
    place.change(json!({"metadata": {"finalizers": null}})).await;
    process.wakes("it is gone").await;
    process.sees("that it is gone", |child| child.is_none()).await;
    assert_eq!(process.passes().await, ["GET child", APPLY]);
    assert_ne!(place.child().await.uid(), first.uid());
    assert_eq!(place.replicas().await, Some(4));
}

#[tokio::test]
async fn a_change_of_an_immutable_field_is_an_error() {
    let place = Place::new("children").await;
    place.create("owner", &[]).await;
    let wanted = wanted(3);
    let process = Process::start(&place, &wanted, select()).await;
    let _ = process.passes().await;
    set(&wanted, "/spec/selector/matchLabels", json!({"app": "b"}));
    set(&wanted, "/spec/template/metadata/labels", json!({"app": "b"}));
    let error = process.pass().await.unwrap_err();
    let NotApplied::Refused { child, source } = why(&error) else { panic!("{error}") };
    assert_eq!(*child, format!("Deployment {}/child", place.namespace));
    assert!(source.to_string().contains("field is immutable"), "{source}");
    assert!(!error.is_conflict() && !error.is_permanent());
}

#[tokio::test]
async fn a_child_without_a_name_or_in_another_namespace_is_refused_without_a_request() {
    let place = Place::new("children").await;
    place.create("owner", &[]).await;
    let wanted = wanted(3);
    let process = Process::start(&place, &wanted, select()).await;
    set(&wanted, "/metadata", json!({"name": "child", "namespace": "default"}));
    let elsewhere = process.pass().await.unwrap_err();
    assert!(matches!(why(&elsewhere), NotApplied::OtherNamespace { .. }), "{elsewhere}");
    set(&wanted, "/metadata", json!({"generateName": "child-"}));
    let nameless = process.pass().await.unwrap_err();
    assert_eq!(nameless.to_string(), "a Deployment without a name cannot be applied");
    assert_eq!(process.requests(), NOTHING);
}

#[tokio::test]
async fn an_object_that_was_read_can_be_applied_again() {
    // With uid, resourceVersion, managedFields and all other metadata.
    let place = Place::new("children").await;
    place.create("owner", &[]).await;
    let wanted = wanted(3);
    let process = Process::start(&place, &wanted, select()).await;
    let _ = process.passes().await;
    let mut read = place.child().await;
    read.spec.as_mut().unwrap().replicas = Some(4);
    *wanted.lock().unwrap() = serde_json::to_value(read).unwrap();
    assert_eq!(process.passes().await, [APPLY]);
    assert_eq!(process.passes().await, NOTHING);
    assert_eq!(place.replicas().await, Some(4));
    for _ in 0..3 {
        *wanted.lock().unwrap() = serde_json::to_value(place.child().await).unwrap();
        assert_eq!(process.passes().await, NOTHING, "the hash annotation that was read does not count");
    }
}

#[tokio::test]
async fn a_child_of_another_kind_needs_no_spec() {
    let place = Place::new("children").await;
    let owner = place.create("owner", &[]).await;
    let cx = Context::preloaded("applier", place.client.clone(), vec![serde_json::to_value(&owner).unwrap()]);
    let accounts = Controller::of::<ConfigMap>(&cx).owns::<ServiceAccount>();
    let metadata = ObjectMeta { name: Some("child".into()), ..ObjectMeta::default() };
    let account =
        ServiceAccount { metadata, automount_service_account_token: Some(false), ..Default::default() };
    let made = accounts.apply(&owner, account).await.unwrap();
    assert_eq!(made.namespace().as_deref(), Some(place.namespace.as_str()));
    assert_eq!(accounts.of(&owner).count(), 1, "it is in the cache");
}
