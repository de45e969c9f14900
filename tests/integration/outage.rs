//! Outages of the API server, broken watches and a compacted etcd: no deletion is missed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::ResourceExt;
use parking_lot::Mutex;
use reknit::{
    injection::Change,
    prelude::*,
    reconciler::ObserveDeletion,
    testing::{ControlPlane, Controllers, eventually},
};
use reknit_samples::{AddressableService, AddressableServiceStatus, SimpleDeployment};

use crate::support::{
    link::Condition,
    objects::{Objects, is_observed},
    process,
    proxy::{Exchange, request::Request},
    server::Server,
    wait::TIMEOUT,
};

const OBJECTS: usize = 20;
const OUTAGE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn controllers_recover_from_an_api_server_outage_of_five_seconds() {
    let server = Server::own(ControlPlane::builder()).await;
    server.install::<AddressableService>().await.expect("the CRD");
    server.install::<SimpleDeployment>().await.expect("the CRD");
    let objects = server.objects_in_new_namespace("outage").await;
    let mut controller = process::controller(server.kubeconfig())
        .without_leader_election()
        .in_namespace(&objects.namespace)
        .spawn();
    create_ready_objects(&objects).await;

    let before = controller.lines().len();
    server.stop().await.expect("the server stops");
    // The duration of the outage. There is no condition to wait for.
    tokio::time::sleep(OUTAGE).await;
    server.restart().await.expect("the server starts again");
    assert!(controller.is_running(), "the controller exited:\n{}", controller.last_lines());
    let lines = controller.lines().len() - before;
    println!("{lines} log lines during an outage of {OUTAGE:?}");
    assert!(lines <= 10, "{lines} log lines:\n{}", controller.last_lines());

    objects.delete_service("web0").await;
    objects.wait_for_state("x0", &objects.unavailable("web0")).await;
    objects.create_service("web0").await;
    for n in 0..OBJECTS {
        objects.wait_until_ready(&format!("x{n}"), &format!("web{n}")).await;
    }
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_deletion_is_missed_when_watches_break() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("cut").await;
    let proxy = server.proxy().await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let controller =
        process::controller(&kubeconfig).without_leader_election().in_namespace(&objects.namespace).spawn();
    create_ready_objects(&objects).await;

    for n in 0..OBJECTS / 2 {
        // Some deletions happen between a cut and the next watch, some during a watch, some before a list.
        if n % 3 == 0 {
            let before = proxy.count_requests(is_watch_of_services);
            proxy.cut_watches();
            eventually("the next watch", TIMEOUT, async || {
                proxy.count_requests(is_watch_of_services) > before
            })
            .await;
            proxy.cut_watches();
        }
        objects.delete_service(&format!("web{n}")).await;
    }
    wait_until_first_half_is_unavailable(&objects).await;
    let watches = proxy.count_requests(is_watch_of_services);
    let lists = proxy.count_requests(|request| request.is("list", "services"));
    println!("8 cuts: {watches} watches and {lists} lists of Services");
    assert!(watches > 4, "the watches were not cut");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_deletion_is_missed_if_etcd_is_compacted_during_an_outage() {
    let server = Server::own(ControlPlane::builder()).await;
    server.install::<AddressableService>().await.expect("the CRD");
    server.install::<SimpleDeployment>().await.expect("the CRD");
    // In the namespace of `objects`, the sample controller adds its finalizer. In the namespace of `unfinalized`,
    // objects have no finalizer, so a deleted object is gone at once.
    let objects = server.objects_in_new_namespace("gap").await;
    let unfinalized = server.objects_in_new_namespace("unfinalized").await;
    let proxy = server.proxy().await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let controller =
        process::controller(&kubeconfig).without_leader_election().in_namespace(&objects.namespace).spawn();
    let reported = ReportedDeletions::default();
    let client = proxy.client(&server.config().expect("a configuration"));
    let observer =
        Controllers::new(client).controller(observing_controller(&unfinalized.namespace, &reported)).start();
    create_ready_objects(&objects).await;
    let uids = create_reconciled_objects(&unfinalized, &reported).await;

    proxy.set_link(Condition::Broken);
    for n in 0..OBJECTS / 2 {
        objects.delete_service(&format!("web{n}")).await;
        unfinalized.delete_addressable(&format!("y{n}")).await;
    }
    objects.delete_addressable(&format!("x{}", OBJECTS - 1)).await;
    unfinalized.create_addressable("y0", "again").await;
    server.compact().await.expect("etcd is compacted");
    server.restart().await.expect("the server restarts with an empty watch cache");
    proxy.set_link(Condition::Up);

    wait_until_first_half_is_unavailable(&objects).await;
    objects.wait_until_gone(&format!("x{}", OBJECTS - 1)).await;
    wait_for_reported_deletions(&reported, &uids).await;
    let gone_events = proxy.delivered_lines().into_iter().filter(|line| line.object["code"] == 410).count();
    let is_gone = |exchange: &Exchange| exchange.request.verb == "watch" && exchange.status == 410;
    let gone_responses = proxy.exchanges().iter().filter(|exchange| is_gone(exchange)).count();
    println!("410 Gone was sent to {} watches", gone_events + gone_responses);
    assert!(gone_events + gone_responses > 0, "no watch got 410, so the test showed nothing");
    controller.stop().await;
    observer.stop().await;
}

fn is_watch_of_services(request: &Request) -> bool {
    request.is("watch", "services")
}

/// Creates Services, and AddressableServices that refer to them, and waits until the AddressableServices are Ready.
async fn create_ready_objects(objects: &Objects) {
    for n in 0..OBJECTS {
        objects.create_service(&format!("web{n}")).await;
        objects.create_addressable(&format!("x{n}"), &format!("web{n}")).await;
    }
    objects.wait_until_all_ready(OBJECTS).await;
}

/// Waits until the first half of the objects is unavailable and the second half is available. The last object is left
/// out, because one test deletes it.
async fn wait_until_first_half_is_unavailable(objects: &Objects) {
    for n in 0..OBJECTS - 1 {
        let service = format!("web{n}");
        let is_service_deleted = n < OBJECTS / 2;
        let expected =
            if is_service_deleted { objects.unavailable(&service) } else { objects.available(&service) };
        objects.wait_for_state(&format!("x{n}"), &expected).await;
    }
}

/// Creates objects, waits until each was reconciled, and returns their uids by name.
async fn create_reconciled_objects(
    objects: &Objects,
    reported: &ReportedDeletions,
) -> BTreeMap<String, String> {
    let mut uids = BTreeMap::new();
    for n in 0..OBJECTS {
        let object = objects.create_addressable(&format!("y{n}"), "none").await;
        uids.insert(object.name_any(), object.uid().expect("a uid"));
    }
    eventually("each object was reconciled", TIMEOUT, async || {
        let list = objects.addressables().list(&Default::default()).await.ok()?;
        list.iter().all(is_observed).then_some(())
    })
    .await;
    assert!(reported.to_handlers.lock().is_empty());
    uids
}

/// Waits until handlers were called once with the uid of each deleted object, and `observe_deletion` with each key
/// except y0, whose object was created again.
async fn wait_for_reported_deletions(reported: &ReportedDeletions, uids: &BTreeMap<String, String>) {
    let expected: BTreeMap<_, _> = (0..OBJECTS / 2)
        .map(|n| format!("y{n}"))
        .map(|name| (name.clone(), vec![uids[&name].clone()]))
        .collect();
    eventually("every deletion is reported once, with the last known object", TIMEOUT, async || {
        let to_handlers = reported.to_handlers.lock().clone();
        if to_handlers == expected { Ok(()) } else { Err(format!("reported: {to_handlers:?}")) }
    })
    .await;
    let absent: Vec<_> = (1..OBJECTS / 2).map(|n| format!("y{n}")).collect();
    eventually("observe_deletion was called for each key", TIMEOUT, async || {
        let mut observed = reported.to_observer.lock().clone();
        observed.sort();
        observed.dedup();
        let all = absent.iter().all(|name| observed.contains(name));
        if all && observed.len() == absent.len() { Ok(()) } else { Err(format!("observed: {observed:?}")) }
    })
    .await;
    println!("{} deletions in the gap reported, {} keys observed", expected.len(), absent.len());
}

/// The deletions that were reported to a controller.
#[derive(Clone, Default)]
struct ReportedDeletions {
    /// The uids of the deleted objects that handlers were called with, by name.
    to_handlers: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    /// The names that `observe_deletion` was called with.
    to_observer: Arc<Mutex<Vec<String>>>,
}

fn observing_controller(
    namespace: &str,
    reported: &ReportedDeletions,
) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let (selection, reported) = (select().namespace(namespace), reported.clone());
    move |cx| {
        let build = Controller::selected::<AddressableService>(cx, selection.clone());
        let to_handlers = reported.to_handlers.clone();
        cx.informer::<AddressableService>(selection).on(move |change| {
            if let Change::Deleted { last } = change {
                to_handlers.lock().entry(last.name_any()).or_default().push(last.uid().unwrap_or_default());
            }
        });
        Ok(build.reconciler(DeletionObserver(reported)).observing_deletion_as_leader().build())
    }
}

struct DeletionObserver(ReportedDeletions);

impl ReconcileKind for DeletionObserver {
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

impl ObserveDeletion for DeletionObserver {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        self.0.to_observer.lock().push(key.name.clone());
        Ok(Outcome::done())
    }
}
