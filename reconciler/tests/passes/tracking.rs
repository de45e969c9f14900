use std::sync::Mutex;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use kube::{
    Resource, ResourceExt,
    core::{Expression, Selector},
};
use reknit_injection::{Context, Informer, named};
use reknit_reconciler::{Owned, ReconcileKey, Tracked, keys};
use reknit_testing::{ApiServer, ControllerExt, InformerExt};
use serde_json::json;

use super::*;

type Reads = Box<dyn Fn(&Tracked<Service>, &Lamp) -> Result<Outcome> + Send + Sync>;

/// Runs the reads of the test.
struct Reading {
    services: Tracked<Service>,
    reads: std::sync::Arc<Mutex<Reads>>,
}

impl ReconcileKind for Reading {
    type Kind = Lamp;
    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        (self.reads.lock().unwrap())(&self.services, lamp)
    }
}

struct Desk {
    made: Controller,
    reads: std::sync::Arc<Mutex<Reads>>,
    services: Informer<Service>,
    lamps: Informer<Lamp>,
}

impl Desk {
    fn new() -> Self {
        let held = serde_json::to_value(lamp()).unwrap();
        let cx = Context::preloaded("test", ApiServer::new().client(), vec![held]);
        let mut build = Controller::of::<Lamp>(&cx);
        let services = build.track();
        let reads: std::sync::Arc<Mutex<Reads>> =
            std::sync::Arc::new(Mutex::new(Box::new(|_, _| Ok(Outcome::done()))));
        let made = build.reconciler(Reading { services, reads: reads.clone() }).build();
        Self { made, reads, services: cx.get(), lamps: cx.get() }
    }

    async fn pass(
        &self,
        reads: impl Fn(&Tracked<Service>, &Lamp) -> Result<Outcome> + Send + Sync + 'static,
    ) {
        *self.reads.lock().unwrap() = Box::new(reads);
        let _ = self.made.once(&key()).await;
        self.made.queued();
    }

    fn wakes(&self, service: &str, labels: &[(&str, &str)]) -> bool {
        let mut changed = Service::default();
        changed.metadata.name = Some(service.into());
        changed.metadata.namespace = Some("default".into());
        changed.metadata.labels = Some(labels.iter().map(|&(k, v)| (k.into(), v.into())).collect());
        self.services.insert(changed);
        self.services.remove(&Key::new("default", service));
        !self.made.queued().is_empty()
    }
}

fn reading(
    name: &'static str,
) -> impl Fn(&Tracked<Service>, &Lamp) -> Result<Outcome> + Send + Sync + 'static {
    move |services, lamp| {
        services.get(lamp, name);
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_change_of_an_object_enqueues_the_keys_of_passes_that_read_it_last() {
    let desk = Desk::new();
    desk.pass(reading("one")).await;
    assert!(desk.wakes("one", &[]) && !desk.wakes("two", &[]));
    desk.pass(reading("two")).await;
    assert!(!desk.wakes("one", &[]) && desk.wakes("two", &[]));
}

#[tokio::test]
async fn after_a_failed_pass_earlier_reads_enqueue_the_key_too() {
    let desk = Desk::new();
    desk.pass(reading("one")).await;
    desk.pass(|services, lamp| {
        services.get(lamp, "two");
        Err("before it could read one".into())
    })
    .await;
    assert!(desk.wakes("one", &[]) && desk.wakes("two", &[]));
}

#[tokio::test]
async fn objects_that_start_or_stop_to_match_a_selector_enqueue_the_key() {
    let desk = Desk::new();
    let web = || Selector::from(Expression::Equal("app".into(), "web".into()));
    desk.pass(move |services, lamp| {
        assert_eq!(services.matching(lamp, &web()).count(), 0);
        Ok(Outcome::done())
    })
    .await;
    assert!(desk.wakes("any", &[("app", "web")]) && !desk.wakes("any", &[("app", "db")]));
    desk.pass(reading("one")).await;
    assert!(!desk.wakes("any", &[("app", "web")]));
}

#[tokio::test]
async fn a_deleted_observer_is_not_enqueued() {
    let desk = Desk::new();
    desk.pass(reading("one")).await;
    desk.lamps.remove(&key());
    desk.made.queued();
    let _ = desk.made.once(&key()).await.unwrap();
    assert!(!desk.wakes("one", &[]));
}

#[tokio::test]
async fn reads_as_leader_are_dropped_when_leadership_is_lost() {
    let desk = Desk::new();
    desk.pass(reading("one")).await;
    assert!(desk.wakes("one", &[]));
    assert_eq!(desk.made.once_following(&key()).await.unwrap(), Outcome::skip());
    assert!(!desk.wakes("one", &[]));
}

#[tokio::test]
async fn an_observer_deleted_during_its_pass_leaves_nothing_behind() {
    let desk = Desk::new();
    let lamps = desk.lamps.clone();
    desk.pass(move |services, lamp| {
        lamps.remove(&key());
        services.get(lamp, "one");
        Ok(Outcome::done())
    })
    .await;
    assert!(!desk.wakes("one", &[]));
}

/// Records the names of the controlled objects.
struct Owning {
    secrets: Owned<Secret>,
    found: std::sync::Arc<Mutex<Vec<String>>>,
}

impl ReconcileKind for Owning {
    type Kind = Lamp;
    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        *self.found.lock().unwrap() = self.secrets.of(lamp).map(|secret| secret.name_any()).collect();
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn controlled_objects_are_found_by_uid_and_enqueue_their_owner() {
    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![server.hold(&lamp())]);
    let mut build = Controller::of::<Lamp>(&cx);
    let (secrets, found) = (build.owns(), std::sync::Arc::<Mutex<Vec<String>>>::default());
    let made = build.reconciler(Owning { secrets, found: found.clone() }).build();
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
    assert_eq!(made.queued(), [key()]);
    informer.insert(child("of-the-lamp-before", "uid-before"));
    let _ = made.once(&key()).await.unwrap();
    assert_eq!(*found.lock().unwrap(), ["mine"]);
    informer.remove(&Key::new("default", "mine"));
    assert_eq!(made.queued(), [key()]);
}

/// Does nothing.
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
    let made = build.workers(1).reconciler(Idle);
    let mut map = ConfigMap::default();
    map.metadata.name = Some("m".into());
    map.metadata.namespace = Some("shop".into());
    let labels = [("parent", "p"), ("parent-namespace", "elsewhere"), ("tenant", "t")];
    map.metadata.labels = Some(labels.map(|(name, value)| (name.into(), value.into())).into());
    maps.insert(map);
    let wanted =
        [Key::new(None, "shop"), Key::new(None, "t"), Key::new("elsewhere", "p"), Key::new("shop", "p")];
    assert_eq!(made.queued(), wanted);
}

#[tokio::test]
async fn a_controller_waits_for_each_of_its_informers_once() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let mut build = Controller::of::<Lamp>(&cx);
    let _services: Tracked<Service> = build.track();
    let _again: Tracked<Service> = build.track();
    let _pods: Owned<Pod> = build.owns();
    let _namespaces = cx.get::<Informer<Namespace>>();
    let _any = build.track_any();
    let made = build.reconciler(Does(lighting)).build();
    let names: Vec<_> = made.informers().iter().map(|informer| informer.name().to_owned()).collect();
    assert_eq!(names, ["lamps.demo.reknit.dev", "services", "pods", "namespaces"]);
    assert!(made.health().is_synced());
}

#[tokio::test]
async fn handles_have_debug_output_and_clones_share_their_state() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let mut build = Controller::of::<Lamp>(&cx);
    let (services, pods): (Tracked<Service>, Owned<Pod>) = (build.track(), build.owns());
    let (anything, kept, queue, recorder) =
        (build.track_any(), build.per_key::<Hidden>(), build.queue(), build.recorder());
    struct Hidden;
    kept.clone().insert(key(), Hidden);
    queue.clone().add(key());
    let said = [
        format!("{:?}", services.clone()),
        format!("{:?}", pods.clone()),
        format!("{:?}", anything.clone()),
        format!("{kept:?} {queue:?} {recorder:?}"),
    ];
    assert_eq!(
        said,
        [
            "Tracked { informer: Informer { name: \"services\", len: 0 }, .. }",
            "Owned { informer: Informer { name: \"pods\", len: 0 }, .. }",
            "TrackedAny { within: None, informers: [], .. }",
            "PerKey { len: 1, .. } Queue { waiting: 1, working: 0, closed: false, .. } Recorder { controller: \"lamp-controller\", .. }",
        ]
    );
    let made = build.reconciler(Does(lighting)).build();
    assert_eq!(format!("{made:?}"), "Controller { name: \"lamps.demo.reknit.dev\", .. }");
    services.clone().get(&lamp(), "web");
    made.queued();
    let web: Service =
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "default"}})).unwrap();
    cx.get::<Informer<Service>>().insert(web);
    assert_eq!(made.queued(), [key()], "read through a clone");
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
    build.watch(&maps).filter(named("power")).every_key();
    let made = build.reconciler(Does(lighting)).build();
    let change = |name: &str| {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        maps.insert(map);
        made.queued()
    };
    assert_eq!(change("other"), []);
    assert_eq!(change("power"), [key(), Key::new("default", "y")]);
}
