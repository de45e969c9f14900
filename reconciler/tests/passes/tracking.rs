//! Keys that changes of tracked, owned and watched objects enqueue.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use kube::{
    Resource, ResourceExt,
    core::{Expression, Selector},
};
use reknit_injection::{Change, Context, Informer, named, select};
use reknit_reconciler::{Kinds, Owned, ReconcileKey, Tracked, keys};
use reknit_testing::{ApiServer, ControllerExt, InformerExt};
use serde_json::json;

use super::*;

type ReadFn = Box<dyn Fn(&Tracked<Service>, &Lamp) -> Result<Outcome> + Send + Sync>;

/// Calls the closure that the test sets, which reads Services.
struct ReadingReconciler {
    services: Tracked<Service>,
    reads: Arc<Mutex<ReadFn>>,
}

impl ReconcileKind for ReadingReconciler {
    type Kind = Lamp;
    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        (self.reads.lock().unwrap())(&self.services, lamp)
    }
}

/// A controller of the lamp `x`. The test sets what its passes read.
struct Fixture {
    controller: Controller,
    reads: Arc<Mutex<ReadFn>>,
    services: Informer<Service>,
    lamps: Informer<Lamp>,
}

impl Fixture {
    fn new() -> Self {
        let cached = serde_json::to_value(lamp()).unwrap();
        let cx = Context::preloaded("test", ApiServer::new().client(), vec![cached]);
        let mut build = Controller::of::<Lamp>(&cx);
        let services = build.track();
        let reads: Arc<Mutex<ReadFn>> = Arc::new(Mutex::new(Box::new(|_, _| Ok(Outcome::done()))));
        let controller = build.reconciler(ReadingReconciler { services, reads: reads.clone() }).build();
        Self { controller, reads, services: cx.get(), lamps: cx.get() }
    }

    /// Runs a pass with these reads, and empties the queue.
    async fn pass(
        &self,
        reads: impl Fn(&Tracked<Service>, &Lamp) -> Result<Outcome> + Send + Sync + 'static,
    ) {
        *self.reads.lock().unwrap() = Box::new(reads);
        let _ = self.controller.once(&key()).await;
        self.controller.take_queued();
    }

    /// Adds and deletes a Service with these labels, and returns true if this enqueues the lamp.
    fn change_enqueues(&self, service: &str, labels: &[(&str, &str)]) -> bool {
        let mut changed = Service::default();
        changed.metadata.name = Some(service.into());
        changed.metadata.namespace = Some("default".into());
        changed.metadata.labels =
            Some(labels.iter().map(|&(name, value)| (name.into(), value.into())).collect());
        self.services.insert(changed);
        self.services.remove(&Key::new("default", service));
        !self.controller.take_queued().is_empty()
    }
}

/// A pass that reads the Service of this name.
fn reading(
    name: &'static str,
) -> impl Fn(&Tracked<Service>, &Lamp) -> Result<Outcome> + Send + Sync + 'static {
    move |services, lamp| {
        services.get(lamp, name);
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_change_of_an_object_enqueues_the_keys_whose_last_pass_read_it() {
    let fixture = Fixture::new();
    fixture.pass(reading("one")).await;
    assert!(fixture.change_enqueues("one", &[]) && !fixture.change_enqueues("two", &[]));
    fixture.pass(reading("two")).await;
    assert!(!fixture.change_enqueues("one", &[]) && fixture.change_enqueues("two", &[]));
}

#[tokio::test]
async fn a_failed_pass_adds_its_reads_to_those_of_the_pass_before() {
    let fixture = Fixture::new();
    fixture.pass(reading("one")).await;
    fixture
        .pass(|services, lamp| {
            services.get(lamp, "two");
            Err("before it could read one".into())
        })
        .await;
    assert!(fixture.change_enqueues("one", &[]) && fixture.change_enqueues("two", &[]));
}

#[tokio::test]
async fn a_failed_pass_drops_the_reads_of_the_failed_pass_before() {
    let fixture = Fixture::new();
    fixture.pass(reading("one")).await;
    for name in ["two", "three"] {
        fixture
            .pass(move |services, lamp| {
                services.get(lamp, name);
                match name {
                    "two" => Err("it does not exist".into()),
                    _ => panic!("a pass that is aborted"),
                }
            })
            .await;
    }
    let enqueues = ["one", "two", "three"].map(|name| fixture.change_enqueues(name, &[]));
    assert_eq!(enqueues, [true, false, true]);
}

#[tokio::test]
async fn objects_that_start_or_stop_matching_a_selector_enqueue_the_key() {
    let fixture = Fixture::new();
    let web = || Selector::from(Expression::Equal("app".into(), "web".into()));
    fixture
        .pass(move |services, lamp| {
            assert_eq!(services.matching(lamp, &web()).count(), 0);
            Ok(Outcome::done())
        })
        .await;
    assert!(
        fixture.change_enqueues("any", &[("app", "web")])
            && !fixture.change_enqueues("any", &[("app", "db")])
    );
    fixture.pass(reading("one")).await;
    assert!(!fixture.change_enqueues("any", &[("app", "web")]));
}

#[tokio::test]
async fn a_deleted_observer_is_not_enqueued() {
    let fixture = Fixture::new();
    fixture.pass(reading("one")).await;
    fixture.lamps.remove(&key());
    fixture.controller.take_queued();
    let _ = fixture.controller.once(&key()).await.unwrap();
    assert!(!fixture.change_enqueues("one", &[]));
}

#[tokio::test]
async fn the_reads_of_a_leader_are_dropped_when_leadership_is_lost() {
    let fixture = Fixture::new();
    fixture.pass(reading("one")).await;
    assert!(fixture.change_enqueues("one", &[]));
    assert_eq!(fixture.controller.once_following(&key()).await.unwrap(), Outcome::skip());
    assert!(!fixture.change_enqueues("one", &[]));
}

#[tokio::test]
async fn an_observer_deleted_during_its_pass_is_not_enqueued_again() {
    let fixture = Fixture::new();
    let lamps = fixture.lamps.clone();
    fixture
        .pass(move |services, lamp| {
            lamps.remove(&key());
            services.get(lamp, "one");
            Ok(Outcome::done())
        })
        .await;
    assert!(!fixture.change_enqueues("one", &[]));
}

/// Records the names of the Secrets that the lamp controls.
struct OwningReconciler {
    secrets: Owned<Secret>,
    found: Arc<Mutex<Vec<String>>>,
}

impl ReconcileKind for OwningReconciler {
    type Kind = Lamp;
    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        *self.found.lock().unwrap() = self.secrets.of(lamp).map(|secret| secret.name_any()).collect();
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn controlled_objects_are_found_by_uid_and_enqueue_their_owner() {
    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![server.insert(&lamp())]);
    let mut build = Controller::of::<Lamp>(&cx);
    let (secrets, found) = (build.owns(), Arc::<Mutex<Vec<String>>>::default());
    let controller = build.reconciler(OwningReconciler { secrets, found: found.clone() }).build();
    let child = |name: &str, uid: &str| {
        let mut owner = lamp();
        owner.metadata.uid = Some(uid.into());
        let mut child = Secret::default();
        child.metadata.name = Some(name.into());
        child.metadata.namespace = Some("default".into());
        child.metadata.owner_references = owner.controller_owner_ref(&()).map(|owner| vec![owner]);
        child
    };
    let informer = cx.get::<Informer<Secret>>();
    informer.insert(child("mine", "uid-x"));
    assert_eq!(controller.take_queued(), [key()]);
    informer.insert(child("of-the-previous-lamp", "uid-previous"));
    let _ = controller.once(&key()).await.unwrap();
    assert_eq!(*found.lock().unwrap(), ["mine"]);
    informer.remove(&Key::new("default", "mine"));
    assert_eq!(controller.take_queued(), [key()]);
}

/// A reconciler that does nothing.
struct Idle;

impl ReconcileKey for Idle {
    async fn reconcile_key(&self, _: &Key) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn labels_and_namespaces_map_to_parents() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let mut build = Controller::named("parents", &cx);
    let maps = cx.get::<Informer<ConfigMap>>();
    build.watch(&maps).keys(keys::label("parent"));
    build.watch(&maps).keys(keys::labels("parent-namespace", "parent"));
    build.watch(&maps).keys(keys::cluster_label("tenant"));
    build.watch(&maps).keys(keys::namespace);
    let controller = build.workers(1).reconciler(Idle);
    let mut map = ConfigMap::default();
    map.metadata.name = Some("m".into());
    map.metadata.namespace = Some("shop".into());
    let labels = [("parent", "p"), ("parent-namespace", "elsewhere"), ("tenant", "t")];
    map.metadata.labels = Some(labels.map(|(name, value)| (name.into(), value.into())).into());
    maps.insert(map);
    let expected =
        [Key::new(None, "shop"), Key::new(None, "t"), Key::new("elsewhere", "p"), Key::new("shop", "p")];
    assert_eq!(controller.take_queued(), expected);
}

#[tokio::test]
async fn a_controller_waits_for_each_of_its_informers_once() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let mut build = Controller::of::<Lamp>(&cx);
    let _services: Tracked<Service> = build.track();
    let _again: Tracked<Service> = build.track();
    let _pods: Owned<Pod> = build.owns();
    let _namespaces = cx.get::<Informer<Namespace>>();
    let _any = build.track_any(Kinds::any());
    let controller = build.reconciler(ClosureReconciler(light)).build();
    let names: Vec<_> = controller.informers().iter().map(|informer| informer.name().to_owned()).collect();
    assert_eq!(names, ["lamps.demo.reknit.dev", "services", "pods", "namespaces"]);
    assert!(controller.health().is_synced());
}

#[tokio::test]
async fn handles_have_debug_output_and_clones_share_their_state() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let mut build = Controller::of::<Lamp>(&cx);
    let (services, pods): (Tracked<Service>, Owned<Pod>) = (build.track(), build.owns());
    let (anything, kept, queue, recorder) =
        (build.track_any(Kinds::any()), build.per_key::<Hidden>(), build.queue(), build.recorder());
    struct Hidden;
    kept.clone().insert(key(), Hidden);
    queue.clone().add(key());
    let debug_outputs = [
        format!("{:?}", services.clone()),
        format!("{:?}", pods.clone()),
        format!("{:?}", anything.clone()),
        format!("{kept:?} {queue:?} {recorder:?}"),
    ];
    assert_eq!(
        debug_outputs,
        [
            "Tracked { informer: Informer { name: \"services\", len: 0 }, .. }",
            "Owned { informer: Informer { name: \"pods\", len: 0 }, .. }",
            "TrackedAny { namespaces: [], informers: [], .. }",
            "PerKey { len: 1, .. } Queue { waiting: 1, working: 0, closed: false, .. } Recorder { controller: \"lamp-controller\", .. }",
        ]
    );
    let controller = build.reconciler(ClosureReconciler(light)).build();
    assert_eq!(format!("{controller:?}"), "Controller { name: \"lamps.demo.reknit.dev\", .. }");
    services.clone().get(&lamp(), "web");
    controller.take_queued();
    let web: Service =
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "default"}})).unwrap();
    cx.get::<Informer<Service>>().insert(web);
    assert_eq!(controller.take_queued(), [key()], "an observer that read through a clone is not enqueued");
}

#[tokio::test]
async fn a_watch_of_a_shared_dependency_enqueues_every_key() {
    let lamps = ["x", "y"].map(|name| {
        let mut lamp = lamp();
        lamp.metadata.name = Some(name.into());
        serde_json::to_value(lamp).unwrap()
    });
    let cx = Context::preloaded("test", ApiServer::new().client(), lamps.into());
    let mut build = Controller::of::<Lamp>(&cx);
    let maps = cx.get::<Informer<ConfigMap>>();
    build.watch(&maps).filter(named("power")).resync_every_key();
    let controller = build.reconciler(ClosureReconciler(light)).build();
    let change = |name: &str| {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        maps.insert(map);
        controller.take_queued()
    };
    assert_eq!(change("other"), []);
    assert_eq!(change("power"), [key(), Key::new("default", "y")]);
}

#[tokio::test]
async fn a_controller_reads_the_namespaces_of_the_process_and_all_cluster_scoped_objects() {
    let config_map = |namespace: &str| {
        let mut map = ConfigMap::default();
        map.metadata.name = Some("settings".into());
        map.metadata.namespace = Some(namespace.into());
        map
    };
    let mut tenant = Namespace::default();
    tenant.metadata.name = Some("tenant".into());
    let server = ApiServer::new();
    let objects = vec![
        server.insert(&tenant),
        server.insert(&config_map("mine")),
        server.insert(&config_map("theirs")),
    ];
    let cx = Context::preloaded("test", server.client(), objects);
    cx.provide(select().namespace("mine"));
    let mut build = Controller::of::<Namespace>(&cx);
    let (maps, namespaces) = (build.track::<ConfigMap>(), build.track::<Namespace>());
    assert!(maps.get_in(&tenant, "mine", "settings").is_some());
    assert!(maps.get_in(&tenant, "theirs", "settings").is_none());
    assert!(namespaces.get(&tenant, "tenant").is_some());
}

#[tokio::test]
async fn a_selector_may_select_in_another_namespace() {
    let fixture = Fixture::new();
    fixture
        .pass(|services, lamp| {
            let selector: Selector = Expression::Equal("app".into(), "web".into()).into();
            assert_eq!(services.matching_in(lamp, "other", &selector).count(), 0);
            Ok(Outcome::done())
        })
        .await;
    let mut web = Service::default();
    web.metadata.name = Some("web".into());
    web.metadata.labels = Some([("app".into(), "web".into())].into());
    for (namespace, enqueues) in [("default", false), ("other", true)] {
        web.metadata.namespace = Some(namespace.into());
        fixture.services.insert(web.clone());
        assert_eq!(!fixture.controller.take_queued().is_empty(), enqueues, "{namespace}");
    }
}

#[tokio::test]
async fn a_change_that_is_not_relevant_enqueues_nothing() {
    let cached = serde_json::to_value(lamp()).unwrap();
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![cached]);
    let mut build = Controller::of::<Lamp>(&cx);
    let services: Tracked<Service> = build.track_where(|change: &Change<Service>| match change {
        Change::Updated { old, new } => old.spec != new.spec,
        _ => true,
    });
    let read: ReadFn = Box::new(|services, lamp| {
        services.get(lamp, "web");
        Ok(Outcome::done())
    });
    let reads = Arc::new(Mutex::new(read));
    let controller = build.reconciler(ReadingReconciler { services, reads }).build();
    let _ = controller.once(&key()).await.unwrap();
    controller.take_queued();
    let informer: Informer<Service> = cx.get();
    let mut web = Service::default();
    web.metadata.name = Some("web".into());
    web.metadata.namespace = Some("default".into());
    let mut enqueues = |change: fn(&mut Service)| {
        change(&mut web);
        informer.insert(web.clone());
        !controller.take_queued().is_empty()
    };
    assert!(enqueues(|_| ()), "an object that is created is relevant");
    assert!(!enqueues(|web| web.metadata.labels = Some([("a".into(), "b".into())].into())));
    assert!(enqueues(|web| web.spec.get_or_insert_default().cluster_ip = Some("10.0.0.1".into())));
}
