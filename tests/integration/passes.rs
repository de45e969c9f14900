//! The number of reconciles and writes: a reconciler's own writes enqueue its key, and the framework's writes do not.

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
use reknit::{prelude::*, testing::eventually};
use samples_apis::{AddressableService, AddressableServiceStatus};

use crate::support::{
    in_process::{InProcess, make},
    objects::Objects,
    proxy::Proxy,
    server::Server,
    wait::{SOON, settled},
};

/// A reconciler that creates a ConfigMap, and reports in the status how many it found.
#[derive(Clone)]
struct Creating {
    client: Client,
    owned: Arc<Owned<ConfigMap>>,
    passes: Arc<AtomicUsize>,
    says: fn(usize) -> String,
}

impl ReconcileKind for Creating {
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
            let maps: Api<ConfigMap> =
                Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
            maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await?;
            assert_eq!(self.owned.of(object).count(), 1, "a pass reads its own writes");
        }
        status.mark_service_unavailable(&(self.says)(found));
        Ok(Outcome::done())
    }
}

fn creating(
    namespace: &str,
    passes: &Arc<AtomicUsize>,
    says: fn(usize) -> String,
) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let (namespace, passes) = (namespace.to_owned(), passes.clone());
    move |cx| {
        let selection = select().namespace(&namespace);
        let mut build = Controller::selected::<AddressableService>(cx, selection.clone());
        let owned = Arc::new(build.owns_in(&cx.informer::<ConfigMap>(selection)));
        let client = build.client();
        Ok(build.reconciler(Creating { client, owned, passes, says }).build())
    }
}

/// The reconciles, creations and status writes until nothing more happens.
#[derive(Debug, PartialEq, Eq)]
struct Took {
    passes: usize,
    creations: usize,
    status_writes: usize,
}

async fn took(proxy: &Proxy, passes: &Arc<AtomicUsize>) -> Took {
    let count = async || Took {
        passes: passes.load(Ordering::Relaxed),
        creations: proxy.count(|request| request.is("create", "configmaps")),
        status_writes: proxy.count(|request| request.is("patch", "addressableservices/status")),
    };
    settled(Duration::from_secs(1), "passes and writes", count).await
}

async fn run(prefix: &str, says: fn(usize) -> String, last: &str) -> Took {
    let server = Server::shared().await;
    let objects = server.objects(prefix).await;
    let proxy = server.proxy().await;
    let passes = Arc::default();
    let config = proxy.config(&server.config().expect("a configuration"));
    let controllers = InProcess::start(config, [make(creating(&objects.namespace, &passes, says))]);
    objects.create("x", "web").await;
    objects.shows("x", &objects.unavailable(last)).await;
    let took = took(&proxy, &passes).await;
    println!("{took:?}");
    controllers.stop().await;
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_computed_before_a_write_is_corrected_by_one_more_reconcile() {
    let took = run("before", |found| format!("{found} found"), "1 found").await;
    assert_eq!(took, Took { passes: 2, creations: 1, status_writes: 2 });
}

#[tokio::test(flavor = "multi_thread")]
async fn one_more_reconcile_writes_nothing_if_the_status_was_right() {
    let took = run("right", |_| "it".into(), "it").await;
    assert_eq!(took, Took { passes: 2, creations: 1, status_writes: 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_write_whose_watch_event_comes_first_enqueues_nothing() {
    let server = Server::shared().await;
    let objects = server.objects("echo").await;
    let proxy = server.proxy().await;
    let passes = Arc::default();
    let config = proxy.config(&server.config().expect("a configuration"));
    let controllers = InProcess::start(config, [make(marking(&objects, &passes))]);
    let answers = proxy.hold_answers(|request| request.is("patch", "addressableservices/status"));
    objects.create("x", "web").await;
    answers.arrived(1).await;
    proxy.sent("the echo", |line| line.is("MODIFIED", "addressableservices", "x")).await;
    // The watch is past the event of the write.
    objects.create("y", "web").await;
    eventually("the pass of y has begun", SOON, async || passes.load(Ordering::Relaxed) >= 2).await;
    answers.open();
    objects.shows("y", &objects.unavailable("seen")).await;
    let took = took(&proxy, &passes).await;
    println!("{took:?}");
    assert_eq!(took, Took { passes: 2, creations: 0, status_writes: 2 });
    controllers.stop().await;
}

fn marking(
    objects: &Objects,
    passes: &Arc<AtomicUsize>,
) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let (selection, passes) = (select().namespace(&objects.namespace), passes.clone());
    move |cx| {
        Ok(Controller::selected::<AddressableService>(cx, selection).reconciler(Marking(passes)).build())
    }
}

struct Marking(Arc<AtomicUsize>);

impl ReconcileKind for Marking {
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
