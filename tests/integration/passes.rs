//! The number of reconciles and writes: writes of user code enqueue the key again, and writes of the framework do not.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use reknit::{
    prelude::*,
    reconciler::OwnedOptions,
    testing::{Controllers, eventually},
};
use reknit_samples::{AddressableService, AddressableServiceStatus};

use crate::support::{
    objects::Objects,
    proxy::Proxy,
    server::Server,
    wait::{TIMEOUT, wait_until_settled},
};

/// A reconciler that creates a ConfigMap unless the object owns one. `message` makes the text of the status from the
/// number of ConfigMaps that the reconcile found at its start.
#[derive(Clone)]
struct CreatingReconciler {
    client: Client,
    owned: Arc<Owned<ConfigMap>>,
    passes: Arc<AtomicUsize>,
    message: fn(usize) -> String,
}

impl ReconcileKind for CreatingReconciler {
    type Kind = AddressableService;

    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        self.passes.fetch_add(1, Ordering::Relaxed);
        let found = self.owned.of(object).count();
        if found == 0 {
            let metadata = ObjectMeta {
                name: Some(object.name_any()),
                owner_references: object.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            };
            let config_maps: Api<ConfigMap> =
                Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
            config_maps
                .create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() })
                .await?;
            assert_eq!(self.owned.of(object).count(), 1, "the pass does not read its own write");
        }
        status.mark_service_unavailable(&(self.message)(found));
        Ok(Outcome::done())
    }
}

fn creating_controller(
    namespace: &str,
    passes: &Arc<AtomicUsize>,
    message: fn(usize) -> String,
) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let (namespace, passes) = (namespace.to_owned(), passes.clone());
    move |cx| {
        let selection = select().namespace(&namespace);
        let mut build = Controller::selected::<AddressableService>(cx, selection.clone());
        let owned = Arc::new(build.owns_in(&cx.informer::<ConfigMap>(selection), OwnedOptions::default()));
        let client = build.client();
        Ok(build.reconciler(CreatingReconciler { client, owned, passes, message }).build())
    }
}

/// The numbers of reconciles, of created ConfigMaps and of status writes.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    passes: usize,
    creations: usize,
    status_writes: usize,
}

/// Waits until the counts no longer change, and returns them.
async fn settled_counts(proxy: &Proxy, passes: &Arc<AtomicUsize>) -> Counts {
    let read_counts = async || Counts {
        passes: passes.load(Ordering::Relaxed),
        creations: proxy.count_requests(|request| request.is("create", "configmaps")),
        status_writes: proxy.count_requests(|request| request.is("patch", "addressableservices/status")),
    };
    wait_until_settled(Duration::from_secs(1), "passes and writes", read_counts).await
}

/// Runs the [`CreatingReconciler`] on one object until the message is `last_message` and the counts no longer change.
async fn run(prefix: &str, message: fn(usize) -> String, last_message: &str) -> Counts {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace(prefix).await;
    let proxy = server.proxy().await;
    let passes = Arc::default();
    let client = proxy.client(&server.config().expect("a configuration"));
    let controllers = Controllers::new(client)
        .controller(creating_controller(&objects.namespace, &passes, message))
        .start();
    objects.create_addressable("x", "web").await;
    objects.wait_for_state("x", &objects.unavailable(last_message)).await;
    let counts = settled_counts(&proxy, &passes).await;
    println!("{counts:?}");
    controllers.stop().await;
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_computed_before_a_write_is_corrected_by_one_more_reconcile() {
    let counts = run("before", |found| format!("{found} found"), "1 found").await;
    assert_eq!(counts, Counts { passes: 2, creations: 1, status_writes: 2 });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reconcile_after_an_own_write_sends_no_status_if_the_first_status_was_right() {
    let counts = run("right", |_| "constant".into(), "constant").await;
    assert_eq!(counts, Counts { passes: 2, creations: 1, status_writes: 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_write_whose_watch_event_comes_first_enqueues_nothing() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("echo").await;
    let proxy = server.proxy().await;
    let passes = Arc::default();
    let client = proxy.client(&server.config().expect("a configuration"));
    let controllers = Controllers::new(client).controller(marking_controller(&objects, &passes)).start();
    let gate = proxy.hold_responses(|request| request.is("patch", "addressableservices/status"));
    objects.create_addressable("x", "web").await;
    gate.wait_for_arrivals(1).await;
    proxy
        .wait_for_line("the watch event of the status write", |line| {
            line.is("MODIFIED", "addressableservices", "x")
        })
        .await;
    // Once the later object y is reconciled, the controller has handled the event of x.
    objects.create_addressable("y", "web").await;
    eventually("the reconcile of y has begun", TIMEOUT, async || passes.load(Ordering::Relaxed) >= 2).await;
    gate.open();
    objects.wait_for_state("y", &objects.unavailable("seen")).await;
    let counts = settled_counts(&proxy, &passes).await;
    println!("{counts:?}");
    assert_eq!(counts, Counts { passes: 2, creations: 0, status_writes: 2 });
    controllers.stop().await;
}

/// Returns the constructor of a controller that counts its reconciles and sets a constant status.
fn marking_controller(
    objects: &Objects,
    passes: &Arc<AtomicUsize>,
) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let (selection, passes) = (select().namespace(&objects.namespace), passes.clone());
    move |cx| {
        Ok(Controller::selected::<AddressableService>(cx, selection)
            .reconciler(MarkingReconciler(passes))
            .build())
    }
}

struct MarkingReconciler(Arc<AtomicUsize>);

impl ReconcileKind for MarkingReconciler {
    type Kind = AddressableService;

    async fn reconcile_kind(
        &self,
        _: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        self.0.fetch_add(1, Ordering::Relaxed);
        status.mark_service_unavailable("seen");
        Ok(Outcome::done())
    }
}
