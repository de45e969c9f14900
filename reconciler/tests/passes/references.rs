//! References to Kinds that are known only at run time, and the informers that they open.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Service};
use kube::{Client, ResourceExt, api::DynamicObject, client::Body};
use reknit_apis::{KReference, Reference};
use reknit_injection::{Context, Informer, select};
use reknit_reconciler::{Kinds, Owned, Tracked, TrackedAny, internal::selected_in_all_namespaces};
use reknit_testing::{ApiServer, ControllerExt, InformerExt};
use serde_json::json;

use super::*;

/// Records the names of the objects to which one reference leads.
struct ReferenceFollower {
    anything: TrackedAny,
    reference: Reference,
    found: Arc<Mutex<Vec<String>>>,
}

impl ReconcileKind for ReferenceFollower {
    type Kind = Lamp;
    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        let found = self.anything.all(lamp, &self.reference).await?;
        *self.found.lock().unwrap() = found.iter().map(|object| object.name_any()).collect();
        Ok(Outcome::done())
    }
}

/// A controller that follows this reference, and the names of the objects that its last pass found.
fn following(reference: Reference) -> (Context, Controller, Arc<Mutex<Vec<String>>>) {
    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![server.insert(&lamp())]);
    let mut build = Controller::of::<Lamp>(&cx);
    let found = Arc::default();
    let anything = build.track_any(Kinds::any());
    let controller =
        build.reconciler(ReferenceFollower { anything, reference, found: Arc::clone(&found) }).build();
    (cx, controller, found)
}

#[tokio::test]
async fn a_reference_without_a_namespace_is_followed_in_the_observers_namespace() {
    let reference = KReference {
        api_version: "serving.knative.dev/v1".into(),
        kind: "Service".into(),
        namespace: None,
        name: "s".into(),
        ..KReference::default()
    };
    let (cx, controller, found) = following(reference.into());
    let _ = controller.once(&key()).await.unwrap();
    controller.take_queued();
    let gvk = kube::core::GroupVersionKind::gvk("serving.knative.dev", "v1", "Service");
    let (kind, _) = cx.informers().resolve(&gvk).await.unwrap().unwrap();
    let informer = cx.informer_of(&kind, select());
    informer.insert(DynamicObject::new("s", &kind).within("other"));
    assert!(controller.take_queued().is_empty());
    informer.insert(DynamicObject::new("s", &kind).within("default"));
    assert_eq!(controller.take_queued(), [key()]);
    let _ = controller.once(&key()).await.unwrap();
    assert_eq!(*found.lock().unwrap(), ["s"]);
}

#[tokio::test]
async fn a_reference_with_a_selector_is_followed_and_one_without_name_and_selector_is_a_permanent_error() {
    let selecting = json!({"apiVersion": "v1", "kind": "Pod", "selector": {"matchLabels": {"app": "web"}}});
    let (cx, controller, found) = following(serde_json::from_value(selecting).unwrap());
    let _ = controller.once(&key()).await.unwrap();
    controller.take_queued();
    let gvk = kube::core::GroupVersionKind::gvk("", "v1", "Pod");
    let (kind, _) = cx.informers().resolve(&gvk).await.unwrap().unwrap();
    let mut pod = DynamicObject::new("p", &kind).within("default");
    pod.labels_mut().insert("app".into(), "web".into());
    cx.informer_of(&kind, select()).insert(pod);
    assert_eq!(controller.take_queued(), [key()]);
    let _ = controller.once(&key()).await.unwrap();
    assert_eq!(*found.lock().unwrap(), ["p"]);

    let (_cx, controller, _) =
        following(serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod"})).unwrap());
    let error = controller.once(&key()).await.unwrap_err();
    assert!(error.is_permanent());
    assert_eq!(error.to_string(), "invalid Reference:\nmust provide either Name or Selector");
}

#[tokio::test]
async fn a_reference_without_a_namespace_from_a_cluster_scoped_object_is_a_permanent_error() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let anything = Controller::of::<Namespace>(&cx).track_any(Kinds::any());
    let mut shop = Namespace::default();
    shop.metadata.name = Some("shop".into());
    let reference = |namespace: Option<&str>| KReference {
        api_version: "v1".into(),
        kind: "Service".into(),
        namespace: namespace.map(Into::into),
        name: "s".into(),
        ..KReference::default()
    };
    let error = anything.get(&shop, &reference(None)).await.unwrap_err();
    assert!(error.is_permanent());
    let message =
        "the reference to a Service of v1 names no namespace, and shop is cluster-scoped: name the namespace";
    assert_eq!(error.to_string(), message);
    assert!(anything.get(&shop, &reference(Some("other"))).await.unwrap().is_none());
}

#[tokio::test]
async fn a_controller_of_one_namespace_reads_that_namespace_and_cluster_scoped_objects() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let mut build = Controller::selected::<Lamp>(&cx, select().namespace("default"));
    let (_services, _nodes): (Tracked<Service>, Tracked<Node>) = (build.track(), build.track());
    let anything = build.track_any(Kinds::any()).across_namespaces();
    let reference = |kind: &str, namespace: Option<&str>| KReference {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: namespace.map(Into::into),
        name: "n".into(),
        ..KReference::default()
    };
    assert!(anything.get(&lamp(), &reference("Pod", None)).await.unwrap().is_none());
    let error = anything.get(&lamp(), &reference("Pod", Some("other"))).await.unwrap_err();
    assert!(error.is_permanent());
    let message =
        "the reference to a Pod of v1 leads to the namespace other, which this controller does not read";
    assert_eq!(error.to_string(), message);
    let names: Vec<_> = cx.informers().states().into_iter().map(|(name, _)| name).collect();
    let lamps = "lamps.demo.reknit.dev [namespace=default]";
    assert_eq!(names, [lamps, "nodes", "pods [namespace=default]", "services [namespace=default]"]);
}

#[tokio::test]
async fn a_controller_of_several_namespaces_tracks_owns_and_follows_references_in_all_of_them() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let mut build = Controller::selected::<Lamp>(&cx, select().namespaces(["other", "default"]));
    let (_services, _maps): (Tracked<Service>, Owned<ConfigMap>) = (build.track(), build.owns());
    let anything = build.track_any(Kinds::any()).across_namespaces();
    let reference = |namespace: &str| KReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: Some(namespace.into()),
        name: "n".into(),
        ..KReference::default()
    };
    assert!(anything.get(&lamp(), &reference("other")).await.unwrap().is_none());
    let error = anything.get(&lamp(), &reference("third")).await.unwrap_err();
    assert!(error.is_permanent());
    assert!(
        error.to_string().ends_with("the namespace third, which this controller does not read"),
        "{error}"
    );
    let names: Vec<_> = cx.informers().states().into_iter().map(|(name, _)| name).collect();
    let expected = ["configmaps", "lamps.demo.reknit.dev", "pods", "services"];
    assert_eq!(names, expected.map(|resource| format!("{resource} [namespace=default,other]")));
}

/// A client of an API server that has one ConfigMap in the namespace `default`, and forbids listing others.
fn client_of_one_namespace() -> Client {
    let respond = |request: http::Request<Body>| async move {
        if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            return std::future::pending().await;
        }
        let (code, body) = match request.uri().path() {
            "/api/v1" => (
                200,
                json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [
                    {"name": "configmaps", "kind": "ConfigMap", "namespaced": true, "singularName": "", "verbs": []},
                ]}),
            ),
            "/api/v1/namespaces/default/configmaps" => (
                200,
                json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "2"}, "items": [
                    {"metadata": {"namespace": "default", "name": "m", "uid": "u", "resourceVersion": "1",
                                  "labels": {"app": "web"}}},
                ]}),
            ),
            _ => (
                403,
                json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}),
            ),
        };
        let body = Body::from(body.to_string().into_bytes());
        http::Response::builder().status(code).body(body)
    };
    Client::new(tower::service_fn(respond), "default")
}

#[tokio::test(start_paused = true)]
async fn the_refusal_of_a_list_enqueues_the_observer_and_is_the_error_of_its_next_pass() {
    let cx = Context::new("test", client_of_one_namespace());
    let mut build = Controller::of::<Lamp>(&cx);
    let (anything, queue) = (build.track_any(Kinds::any()), build.queue());
    cx.informers().start();
    let reference = KReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: None,
        name: "m".into(),
        ..KReference::default()
    };
    let waiting = anything.get(&lamp(), &reference).await.unwrap_err();
    assert!(waiting.is_waiting(), "{waiting:#}");
    while !format!("{queue:?}").contains("waiting: 1") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let error = anything.get(&lamp(), &reference).await.unwrap_err();
    assert!(error.to_string().starts_with("the first list of configmaps has not arrived yet: "), "{error}");
    assert!(!error.is_permanent() && !error.is_waiting());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_cannot_be_listed_stops_a_read_of_all_only_if_the_reference_leads_to_it() {
    let cx = Context::new("test", client_of_one_namespace());
    let mut build = Controller::selected::<Lamp>(&cx, select().namespaces(["default", "shop"]));
    let anything = build.track_any(Kinds::any());
    cx.informers().start();
    let node: Node = serde_json::from_value(node()).unwrap();
    let read = async |namespace: Option<&str>| {
        let mut reference = selecting("v1", "ConfigMap");
        reference.namespace = namespace.map(Into::into);
        selected_in_all_namespaces(&anything, &node, &reference).await
    };
    let found = tokio::time::timeout(Duration::from_secs(300), async {
        loop {
            match read(Some("default")).await {
                Ok(found) => break found,
                Err(error) => assert!(!error.is_permanent(), "{error:#}"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    assert_eq!(found.await.unwrap().len(), 1);
    assert_eq!(read(None).await.unwrap().len(), 1, "the reference leads nowhere");
    let error = read(Some("shop")).await.unwrap_err();
    assert!(!error.is_permanent(), "{error:#}");
}

/// Reads the references that the test sets, and then fails if the test has set `fails`.
struct ReferenceReader {
    anything: TrackedAny,
    references: Arc<Mutex<Vec<Reference>>>,
    fails: Arc<Mutex<bool>>,
}

impl ReconcileKind for ReferenceReader {
    type Kind = Lamp;
    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        let references = self.references.lock().unwrap().clone();
        for reference in &references {
            self.anything.all(lamp, reference).await?;
        }
        if *self.fails.lock().unwrap() { Err("as planned".into()) } else { Ok(Outcome::done()) }
    }
}

/// A controller of the lamps `x` and `y`. Its passes read the references that the test sets.
struct Fixture {
    cx: Context,
    controller: Controller,
    references: Arc<Mutex<Vec<Reference>>>,
    fails: Arc<Mutex<bool>>,
}

impl Fixture {
    fn new() -> Self {
        let server = ApiServer::new();
        let lamps = ["x", "y"].map(|name| {
            let mut lamp = lamp();
            lamp.metadata.name = Some(name.into());
            server.insert(&lamp)
        });
        let cx = Context::preloaded("test", server.client(), lamps.into());
        let mut build = Controller::of::<Lamp>(&cx);
        let anything = build.track_any(Kinds::any());
        let (references, fails) = (Arc::default(), Arc::default());
        let reading =
            ReferenceReader { anything, references: Arc::clone(&references), fails: Arc::clone(&fails) };
        Self { controller: build.reconciler(reading).build(), cx, references, fails }
    }

    /// Runs a pass over this lamp that reads these references, and empties the queue.
    async fn pass(&self, name: &str, references: &[&Reference]) {
        *self.references.lock().unwrap() = references.iter().map(|&reference| reference.clone()).collect();
        let _ = self.controller.once(&Key::new("default", name)).await;
        self.controller.take_queued();
    }

    /// Returns the names of the open informers except the informer of lamps.
    fn open_informers(&self) -> Vec<String> {
        let names = self.cx.informers().states().into_iter().map(|(name, _)| name);
        names.filter(|name| !name.starts_with("lamps")).collect()
    }
}

fn named(api_version: &str, kind: &str) -> Reference {
    serde_json::from_value(json!({"apiVersion": api_version, "kind": kind, "name": "n"})).unwrap()
}

fn selecting(api_version: &str, kind: &str) -> Reference {
    let labels = json!({"matchLabels": {"app": "web"}});
    serde_json::from_value(json!({"apiVersion": api_version, "kind": kind, "selector": labels})).unwrap()
}

#[tokio::test]
async fn an_informer_opened_for_a_reference_closes_when_no_object_refers_to_its_kind() {
    let fixture = Fixture::new();
    let (pods, jobs) = (named("v1", "Pod"), selecting("batch/v1", "Job"));
    fixture.pass("x", &[&pods, &jobs]).await;
    fixture.pass("y", &[&pods]).await;
    assert_eq!(fixture.open_informers(), ["jobs.batch", "pods"]);
    fixture.pass("x", &[]).await;
    assert_eq!(
        fixture.open_informers(),
        ["pods"],
        "not the informer of Pods, to which the lamp y still refers"
    );
    fixture.pass("y", &[&jobs]).await;
    assert_eq!(fixture.open_informers(), ["jobs.batch"]);
    fixture.cx.get::<Informer<Lamp>>().remove(&Key::new("default", "y"));
    fixture.pass("y", &[&jobs]).await;
    assert_eq!(fixture.open_informers(), [""; 0], "informers of a deleted observer are open");
}

#[tokio::test]
async fn an_informer_opened_for_a_reference_stays_open_after_a_failed_pass() {
    let fixture = Fixture::new();
    fixture.pass("x", &[&named("v1", "Pod")]).await;
    *fixture.fails.lock().unwrap() = true;
    fixture.pass("x", &[]).await;
    assert_eq!(fixture.open_informers(), ["pods"]);
    *fixture.fails.lock().unwrap() = false;
    fixture.pass("x", &[]).await;
    assert_eq!(fixture.open_informers(), [""; 0]);
}

#[tokio::test]
async fn a_kind_that_is_referred_to_again_enqueues_its_observers_again() {
    let fixture = Fixture::new();
    let reference = named("example.com/v1", "Thing");
    fixture.pass("x", &[&reference]).await;
    let gvk = kube::core::GroupVersionKind::gvk("example.com", "v1", "Thing");
    let (kind, _) = fixture.cx.informers().resolve(&gvk).await.unwrap().unwrap();
    let things = fixture.cx.informer_of(&kind, select()); // keeps the informer open
    let change_and_take_queued = || {
        things.insert(DynamicObject::new("n", &kind).within("default"));
        things.remove(&Key::new("default", "n"));
        fixture.controller.take_queued()
    };
    assert_eq!(change_and_take_queued(), [key()]);
    fixture.pass("x", &[]).await;
    assert_eq!(change_and_take_queued(), []);
    for _ in 0..3 {
        fixture.pass("x", &[&reference]).await;
        assert_eq!(change_and_take_queued(), [key()]);
        fixture.pass("x", &[]).await;
    }
}

#[tokio::test]
async fn a_reference_to_a_kind_that_is_not_allowed_is_a_permanent_error_and_opens_no_informer() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let kinds = Kinds::of([("", "pods")]).or_any_in(["batch"]);
    let anything = Controller::of::<Lamp>(&cx).track_any(kinds);
    for (api_version, kind) in [("v1", "Pod"), ("batch/v1", "Job")] {
        assert_eq!(anything.all(&lamp(), &named(api_version, kind)).await.unwrap(), []);
    }
    for (api_version, kind) in [("apps/v1", "Deployment"), ("v1", "Secret")] {
        let error = anything.all(&lamp(), &named(api_version, kind)).await.unwrap_err();
        assert!(error.is_permanent());
        assert_eq!(
            error.to_string(),
            format!(
                "{kind} of {api_version} is not among the Kinds that this controller may use: they are those in the \
                 `Kinds` of its builder call"
            )
        );
    }
    let open_informers: Vec<_> = cx.informers().states().into_iter().map(|(name, _)| name).collect();
    assert_eq!(open_informers, ["jobs.batch", "lamps.demo.reknit.dev", "pods"]);
}

#[tokio::test]
async fn a_reference_leads_out_of_the_namespace_only_if_the_controller_says_so() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![node()]);
    let mut build = Controller::of::<Lamp>(&cx);
    let elsewhere: Reference = serde_json::from_value(
        json!({"apiVersion": "v1", "kind": "Secret", "namespace": "kube-system", "name": "n"}),
    )
    .unwrap();
    let own = Reference { namespace: Some("default".into()), ..elsewhere.clone() };
    let node = named("v1", "Node");
    let named_only = build.track_any(Kinds::of([("", "secrets"), ("", "*")]));
    assert_eq!(named_only.all(&lamp(), &own).await.unwrap(), []);
    for (reference, why) in [(&elsewhere, "leads to the namespace kube-system"), (&node, "is cluster-scoped")]
    {
        let error = named_only.all(&lamp(), reference).await.unwrap_err();
        assert!(error.is_permanent());
        let expected = "default/x may refer only to objects in its own namespace";
        assert!(error.to_string().contains(why) && error.to_string().ends_with(expected), "{error}");
    }
    let across = build.track_any(Kinds::any()).across_namespaces();
    assert_eq!(across.all(&lamp(), &elsewhere).await.unwrap(), []);
    assert_eq!(across.all(&lamp(), &node).await.unwrap().len(), 1);
    let naming = build.track_any(Kinds::of([("", "nodes")]));
    assert_eq!(naming.all(&lamp(), &node).await.unwrap().len(), 1);
}

fn node() -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
}
