//! Reconcilers that panic, fail or hang, and objects that cannot be decoded. Other keys are still reconciled.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    discovery::ApiResource,
};
use reknit::{prelude::*, testing::eventually};
use samples_apis::{AddressableService, AddressableServiceStatus};
use serde_json::json;

use crate::support::{
    in_process::{InProcess, make},
    logs,
    loose::{self, Loose},
    objects::Objects,
    server::Server,
    wait::SOON,
};

const DEADLINE: Duration = Duration::from_secs(3);
const SLOW: Duration = Duration::from_secs(1);

/// A reconciler that behaves as the name of the object says.
#[derive(Clone, Default)]
struct Named {
    /// The number of reconciles that panic, fail or hang.
    bad: Arc<AtomicUsize>,
    /// The number of dropped reconciles.
    dropped: Arc<AtomicUsize>,
}

impl ReconcileKind for Named {
    type Kind = AddressableService;

    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        status.mark_service_unavailable("seen");
        let name = object.name_any();
        if !name.starts_with("good") {
            self.bad.fetch_add(1, Ordering::Relaxed);
        }
        match name.as_str() {
            "panics" => panic!("as it does every time"),
            "fails" => Err("it never works".into()),
            "hangs" => {
                let _dropped = Counted(self.dropped.clone());
                pending().await
            }
            _ => Ok(Outcome::done()),
        }
    }
}

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn named(
    namespace: &str,
    named: &Named,
    deadline: Option<Duration>,
) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let (selection, named) = (select().namespace(namespace), named.clone());
    move |cx| {
        let build = Controller::selected::<AddressableService>(cx, selection).slow_after(SLOW);
        let build = match deadline {
            Some(deadline) => build.deadline(deadline),
            None => build,
        };
        Ok(build.reconciler(named).build())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_reconcile_is_reported_with_its_key_and_other_keys_continue() {
    let server = Server::shared().await;
    let objects = server.objects("panics").await;
    bad_beside_good(&server, &objects, "panics", "as it does every time").await;
    let status = objects.get("panics").await.status.unwrap_or_default();
    assert!(
        status.duck.conditions.is_empty(),
        "what the status was when it panicked was written: {status:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_reconcile_is_reported_with_its_key_and_other_keys_continue() {
    let server = Server::shared().await;
    let objects = server.objects("fails").await;
    bad_beside_good(&server, &objects, "fails", "it never works").await;
    // A failed reconcile writes the status that it had computed.
    objects.shows("fails", &objects.unavailable("seen")).await;
}

/// Asserts that the bad object is retried with backoff, that the log and an event name it, and that the good objects
/// are reconciled.
async fn bad_beside_good(server: &Server, objects: &Objects, bad: &str, message: &str) {
    logs::record();
    let reconciler = Named::default();
    let config = server.config().expect("a configuration");
    let controllers = InProcess::start(config, [make(named(&objects.namespace, &reconciler, None))]);
    objects.create(bad, "web").await;
    eventually("three tries", SOON, async || reconciler.bad.load(Ordering::Relaxed) >= 3).await;
    good_ones_go_on(objects).await;
    let event = objects.event(bad, "InternalError").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert!(event.note.as_deref().is_some_and(|note| note.contains(message)), "{:?}", event.note);
    is_logged(objects, bad, message).await;
    println!("{} tries of {bad}; event: {:?}", reconciler.bad.load(Ordering::Relaxed), event.note);
    controllers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_reconcile_is_warned_about_and_dropped_at_its_deadline() {
    logs::record();
    let server = Server::shared().await;
    let objects = server.objects("deadline").await;
    let reconciler = Named::default();
    let config = server.config().expect("a configuration");
    let controllers =
        InProcess::start(config, [make(named(&objects.namespace, &reconciler, Some(DEADLINE)))]);
    objects.create("hangs", "web").await;
    good_ones_go_on(&objects).await;
    eventually("two passes were dropped", SOON, async || reconciler.dropped.load(Ordering::Relaxed) >= 2)
        .await;
    assert!(reconciler.bad.load(Ordering::Relaxed) >= 2, "it was not tried again");
    let slow = eventually("an event that warns", SOON, async || {
        warning_about(&objects, "hangs", |reason| reason == "SlowReconcile").await
    });
    println!("warned: {}", slow.await);
    let dropped = objects.event("hangs", "DeadlineExceeded").await;
    println!("dropped: {:?}", dropped.note);
    is_logged(&objects, "hangs", "was dropped").await;
    controllers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_reconcile_occupies_one_worker() {
    logs::record();
    let server = Server::shared().await;
    let objects = server.objects("hangs").await;
    let reconciler = Named::default();
    let config = server.config().expect("a configuration");
    let controllers = InProcess::start(config, [make(named(&objects.namespace, &reconciler, None))]);
    objects.create("hangs", "web").await;
    let slow =
        eventually("an event that warns", SOON, async || warning_about(&objects, "hangs", |_| true).await);
    println!("warned: {}", slow.await);
    good_ones_go_on(&objects).await;
    assert_eq!(reconciler.dropped.load(Ordering::Relaxed), 0, "without a deadline nothing is dropped");
    controllers.stop().await;
    assert_eq!(reconciler.dropped.load(Ordering::Relaxed), 1, "at the end it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_object_is_reported_with_its_key_and_other_keys_continue() {
    logs::record();
    let server = Server::shared().await;
    server.install_crd(loose::definition()).await.expect("the CRD");
    let objects = server.objects("decode").await;
    let api = loose::untyped(&objects);
    // One object exists before the controller starts, and one is created while it watches.
    create_loose(&api, "bad1", json!({ "replicas": "many" })).await;
    create_loose(&api, "good1", json!({ "replicas": 1 })).await;
    let config = server.config().expect("a configuration");
    let controllers = InProcess::start(config, [make(loose::marking(&objects.namespace))]);
    loose::seen(&objects, "good1").await;
    create_loose(&api, "bad2", json!({ "replicas": ["a", "b"] })).await;
    create_loose(&api, "good2", json!({ "replicas": 2 })).await;
    loose::seen(&objects, "good2").await;
    for bad in ["bad1", "bad2"] {
        let said =
            eventually("an event that warns", SOON, async || warning_about(&objects, bad, |_| true).await);
        println!("{bad}: {}", said.await);
        is_logged(&objects, bad, "expected i32").await;
    }
    let patch = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
    api.patch("bad1", &PatchParams::default(), &patch).await.expect("it is mended");
    loose::seen(&objects, "bad1").await;
    controllers.stop().await;
}

async fn create_loose(api: &Api<DynamicObject>, name: &str, spec: serde_json::Value) {
    let object = DynamicObject::new(name, &ApiResource::erase::<Loose>(&())).data(json!({ "spec": spec }));
    api.create(&PostParams::default(), &object).await.expect("the server takes it");
}

/// Creates twenty objects, more than there are workers, and waits until each was reconciled.
async fn good_ones_go_on(objects: &Objects) {
    for n in 0..20 {
        objects.create(&format!("good{n}"), "web").await;
    }
    for n in 0..20 {
        objects.shows(&format!("good{n}"), &objects.unavailable("seen")).await;
    }
}

/// The note of a Warning event about the object.
async fn warning_about(objects: &Objects, name: &str, reason: impl Fn(&str) -> bool) -> Option<String> {
    let events: Api<k8s_openapi::api::events::v1::Event> =
        Api::namespaced(objects.client.clone(), &objects.namespace);
    let listed = events.list(&Default::default()).await.ok()?;
    let found = listed.into_iter().find(|event| {
        event.type_.as_deref() == Some("Warning")
            && event.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(name)
            && event.reason.as_deref().is_some_and(&reason)
    })?;
    Some(format!("{}: {}", found.reason.unwrap_or_default(), found.note.unwrap_or_default()))
}

/// Waits for a log line with the key and this message.
async fn is_logged(objects: &Objects, name: &str, message: &str) {
    let key = format!("{}/{name}", objects.namespace);
    eventually(format!("a log line with {key} and {message:?}"), SOON, async || {
        let lines = logs::with(&key);
        let found = lines.iter().any(|line| line.contains(message));
        if found { Ok(()) } else { Err(format!("{lines:?}")) }
    })
    .await;
}
