//! Outages of the API server, broken watches and lost history: no deletion is missed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{ResourceExt, api::Api};
use parking_lot::Mutex;
use reknit::{
    prelude::*,
    reconciler::ObserveDeletion,
    testing::{ControlPlane, eventually},
};
use samples_apis::{AddressableService, AddressableServiceStatus, SimpleDeployment};

use crate::support::{
    in_process::{InProcess, make},
    objects::Objects,
    process,
    proxy::request::Request,
    server::Server,
    wait::SOON,
};

const OBJECTS: usize = 20;
const OUTAGE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn controllers_recover_from_a_server_outage_of_five_seconds() {
    let server = Server::own(ControlPlane::builder()).await;
    server.install::<AddressableService>().await.expect("the CRD");
    server.install::<SimpleDeployment>().await.expect("the CRD");
    let objects = server.objects("outage").await;
    let mut controller = process::controller(server.kubeconfig()).alone().within(&objects.namespace).spawn();
    some_ready(&objects).await;

    let before = controller.lines().len();
    server.stop().await.expect("the server stops");
    // The outage has to last this long.
    tokio::time::sleep(OUTAGE).await;
    server.restart().await.expect("the server starts again");
    assert!(controller.is_running(), "it ended with its server:\n{}", controller.tail());
    let lines = controller.lines().len() - before;
    println!("{lines} log lines about {OUTAGE:?} without a server");
    assert!(lines <= 10, "it says too much:\n{}", controller.tail());

    objects.delete_service("web0").await;
    objects.shows("x0", &objects.unavailable("web0")).await;
    objects.create_service("web0").await;
    for n in 0..OBJECTS {
        objects.ready(&format!("x{n}"), &format!("web{n}")).await;
    }
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_that_are_cut_miss_nothing() {
    let server = Server::shared().await;
    let objects = server.objects("cut").await;
    let proxy = server.proxy().await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let controller = process::controller(&kubeconfig).alone().within(&objects.namespace).spawn();
    some_ready(&objects).await;

    for n in 0..OBJECTS / 2 {
        // Some deletions happen between a cut and the next watch, some during a watch, some before a list.
        if n % 3 == 0 {
            let before = proxy.count(is_watch_of_services);
            proxy.cut_watches();
            eventually("the next watch", SOON, async || proxy.count(is_watch_of_services) > before).await;
            proxy.cut_watches();
        }
        objects.delete_service(&format!("web{n}")).await;
    }
    half_ready(&objects).await;
    let watches = proxy.count(is_watch_of_services);
    let lists = proxy.count(|request| request.is("list", "services"));
    println!("8 cuts: {watches} watches of Services begun, {lists} lists");
    assert!(watches > 4, "the watches were not cut");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_deletion_is_missed_in_a_gap_after_which_etcd_was_compacted() {
    let server = Server::own(ControlPlane::builder()).await;
    server.install::<AddressableService>().await.expect("the CRD");
    server.install::<SimpleDeployment>().await.expect("the CRD");
    let (objects, plain) = (server.objects("gap").await, server.objects("plain").await);
    let proxy = server.proxy().await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let controller = process::controller(&kubeconfig).alone().within(&objects.namespace).spawn();
    let noted = Noted::default();
    let config = proxy.config(&server.config().expect("a configuration"));
    let observer = InProcess::start(config, [make(observing(&plain.namespace, &noted))]);
    some_ready(&objects).await;
    let uids = some_seen(&plain, &noted).await;

    proxy.refuse().await;
    for n in 0..OBJECTS / 2 {
        objects.delete_service(&format!("web{n}")).await;
        plain.delete(&format!("y{n}")).await;
    }
    objects.delete(&format!("x{}", OBJECTS - 1)).await;
    plain.create("y0", "again").await;
    server.compact().await.expect("etcd is compacted");
    server.restart().await.expect("the server restarts, and its watch cache begins anew");
    proxy.accept().await;

    half_ready(&objects).await;
    objects.gone(&format!("x{}", OBJECTS - 1)).await;
    deletions_are_noted(&noted, &uids).await;
    let events = proxy.delivered().into_iter().filter(|line| line.object["code"] == 410).count();
    let refused =
        proxy.answered().into_iter().filter(|a| a.request.verb == "watch" && a.status == 410).count();
    println!("410 Gone was sent to {} watches", events + refused);
    assert!(events + refused > 0, "no watch got 410, so this showed nothing");
    controller.stop().await;
    observer.stop().await;
}

fn is_watch_of_services(request: &Request) -> bool {
    request.is("watch", "services")
}

async fn some_ready(objects: &Objects) {
    for n in 0..OBJECTS {
        objects.create_service(&format!("web{n}")).await;
        objects.create(&format!("x{n}"), &format!("web{n}")).await;
    }
    objects.all_ready(OBJECTS).await;
}

/// Waits until all objects but the last show their state, with the Services of the first half gone.
async fn half_ready(objects: &Objects) {
    for n in 0..OBJECTS - 1 {
        let service = format!("web{n}");
        let gone = n < OBJECTS / 2;
        let expected = if gone { objects.unavailable(&service) } else { objects.available(&service) };
        objects.shows(&format!("x{n}"), &expected).await;
    }
}

/// Creates objects without finalizers, and waits until each was reconciled.
async fn some_seen(objects: &Objects, noted: &Noted) -> BTreeMap<String, String> {
    let mut uids = BTreeMap::new();
    for n in 0..OBJECTS {
        let made = objects.create(&format!("y{n}"), "none").await;
        uids.insert(made.name_any(), made.uid().expect("a uid"));
    }
    eventually("each had a pass", SOON, async || {
        let api: Api<AddressableService> = objects.addressables();
        let listed = api.list(&Default::default()).await.ok()?;
        listed.iter().all(observed).then_some(())
    })
    .await;
    assert!(noted.gone.lock().is_empty());
    uids
}

fn observed(object: &AddressableService) -> bool {
    crate::support::objects::observed(object)
}

/// Waits until handlers were called once for each deleted object, with its uid, and deletions of the absent keys were
/// observed.
async fn deletions_are_noted(noted: &Noted, uids: &BTreeMap<String, String>) {
    let expected: BTreeMap<_, _> = (0..OBJECTS / 2)
        .map(|n| format!("y{n}"))
        .map(|name| (name.clone(), vec![uids[&name].clone()]))
        .collect();
    eventually("every deletion is reported once, with the last known object", SOON, async || {
        let gone = noted.gone.lock().clone();
        if gone == expected { Ok(()) } else { Err(format!("reported: {gone:?}")) }
    })
    .await;
    let absent: Vec<_> = (1..OBJECTS / 2).map(|n| format!("y{n}")).collect();
    eventually("the deletion observer saw each key", SOON, async || {
        let mut seen = noted.observed.lock().clone();
        seen.sort();
        seen.dedup();
        let all = absent.iter().all(|name| seen.contains(name));
        if all && seen.len() == absent.len() { Ok(()) } else { Err(format!("seen: {seen:?}")) }
    })
    .await;
    println!("{} deletions in the gap reported, {} keys observed", expected.len(), absent.len());
}

/// The deletions that a controller was notified of.
#[derive(Clone, Default)]
struct Noted {
    /// The uids of the deleted objects that handlers were called with, by name.
    gone: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    /// The keys that the deletion observer was called with.
    observed: Arc<Mutex<Vec<String>>>,
}

fn observing(namespace: &str, noted: &Noted) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let (selection, noted) = (select().namespace(namespace), noted.clone());
    move |cx| {
        let build = Controller::selected::<AddressableService>(cx, selection.clone());
        let gone = noted.gone.clone();
        cx.informer::<AddressableService>(selection).on(move |change| {
            if let Change::Deleted { last } = change {
                gone.lock().entry(last.name_any()).or_default().push(last.uid().unwrap_or_default());
            }
        });
        Ok(build.reconciler(Observing(noted)).observing_deletion().build())
    }
}

struct Observing(Noted);

impl ReconcileKind for Observing {
    type Kind = AddressableService;

    async fn reconcile_kind(
        &self,
        _: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        status.mark_service_unavailable("none");
        Ok(Outcome::done())
    }
}

impl ObserveDeletion for Observing {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        self.0.observed.lock().push(key.name.clone());
        Ok(Outcome::done())
    }
}
