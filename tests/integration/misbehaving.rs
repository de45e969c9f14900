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
use reknit::{
    prelude::*,
    testing::{Controllers, eventually},
};
use reknit_samples::{AddressableService, AddressableServiceStatus};
use serde_json::json;

use crate::support::{
    logs,
    loose_kind::{self, Loose},
    objects::Objects,
    server::Server,
    wait::TIMEOUT,
};

const DEADLINE: Duration = Duration::from_secs(3);
const SLOW: Duration = Duration::from_secs(1);

/// A reconciler that panics, fails or hangs on objects of the name `panics`, `fails` or `hangs`.
#[derive(Clone, Default)]
struct ByName {
    /// The number of calls for objects that panic, fail or hang.
    bad_passes: Arc<AtomicUsize>,
    /// The number of hanging calls that were dropped.
    dropped_passes: Arc<AtomicUsize>,
}

impl ReconcileKind for ByName {
    type Kind = AddressableService;

    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        status.mark_service_unavailable("seen");
        let name = object.name_any();
        if !name.starts_with("good") {
            self.bad_passes.fetch_add(1, Ordering::Relaxed);
        }
        match name.as_str() {
            "panics" => panic!("this object always panics"),
            "fails" => Err("this object always fails".into()),
            "hangs" => {
                let _count_on_drop = CountOnDrop(self.dropped_passes.clone());
                pending().await
            }
            _ => Ok(Outcome::done()),
        }
    }
}

struct CountOnDrop(Arc<AtomicUsize>);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn by_name_controller(
    namespace: &str,
    reconciler: &ByName,
    deadline: Option<Duration>,
) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let (selection, reconciler) = (select().namespace(namespace), reconciler.clone());
    move |cx| {
        let build = Controller::selected::<AddressableService>(cx, selection).slow_after(SLOW);
        let build = match deadline {
            Some(deadline) => build.deadline(deadline),
            None => build,
        };
        Ok(build.reconciler(reconciler).build())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_reconcile_is_reported_with_its_key_and_other_keys_continue() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("panics").await;
    assert_only_the_bad_object_is_affected(&server, &objects, "panics", "this object always panics").await;
    let status = objects.get_addressable("panics").await.status.unwrap_or_default();
    assert!(status.duck.conditions.is_empty(), "the status was written after a panic: {status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_reconcile_is_reported_with_its_key_and_other_keys_continue() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("fails").await;
    assert_only_the_bad_object_is_affected(&server, &objects, "fails", "this object always fails").await;
    // The status that a reconcile filled in before it failed is written.
    objects.wait_for_state("fails", &objects.unavailable("seen")).await;
}

/// Asserts that the object `bad` is retried, that the log and a Warning event report it with `message`, and that other
/// objects are reconciled.
async fn assert_only_the_bad_object_is_affected(
    server: &Server,
    objects: &Objects,
    bad: &str,
    message: &str,
) {
    logs::record();
    let reconciler = ByName::default();
    let client = server.client().expect("a client");
    let controllers = Controllers::new(client)
        .controller(by_name_controller(&objects.namespace, &reconciler, None))
        .start();
    objects.create_addressable(bad, "web").await;
    eventually("three passes", TIMEOUT, async || reconciler.bad_passes.load(Ordering::Relaxed) >= 3).await;
    assert_good_objects_are_reconciled(objects).await;
    let event = objects.wait_for_event(bad, "InternalError").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert!(event.note.as_deref().is_some_and(|note| note.contains(message)), "{:?}", event.note);
    wait_for_log_line(objects, bad, message).await;
    println!("{} passes of {bad}; event: {:?}", reconciler.bad_passes.load(Ordering::Relaxed), event.note);
    controllers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_reconcile_is_warned_about_and_dropped_at_its_deadline() {
    logs::record();
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("deadline").await;
    let reconciler = ByName::default();
    let client = server.client().expect("a client");
    let controllers = Controllers::new(client)
        .controller(by_name_controller(&objects.namespace, &reconciler, Some(DEADLINE)))
        .start();
    objects.create_addressable("hangs", "web").await;
    assert_good_objects_are_reconciled(&objects).await;
    eventually("two passes are dropped", TIMEOUT, async || {
        reconciler.dropped_passes.load(Ordering::Relaxed) >= 2
    })
    .await;
    assert!(reconciler.bad_passes.load(Ordering::Relaxed) >= 2, "the object was not reconciled again");
    let slow = eventually("a SlowReconcile event", TIMEOUT, async || {
        warning_event(&objects, "hangs", |reason| reason == "SlowReconcile").await
    })
    .await;
    println!("warned: {slow}");
    let dropped = objects.wait_for_event("hangs", "DeadlineExceeded").await;
    println!("dropped: {:?}", dropped.note);
    wait_for_log_line(&objects, "hangs", "was dropped").await;
    controllers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_reconcile_without_a_deadline_does_not_block_other_keys() {
    logs::record();
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("hangs").await;
    let reconciler = ByName::default();
    let client = server.client().expect("a client");
    let controllers = Controllers::new(client)
        .controller(by_name_controller(&objects.namespace, &reconciler, None))
        .start();
    objects.create_addressable("hangs", "web").await;
    let warning =
        eventually("a Warning event", TIMEOUT, async || warning_event(&objects, "hangs", |_| true).await)
            .await;
    println!("warned: {warning}");
    assert_good_objects_are_reconciled(&objects).await;
    assert_eq!(reconciler.dropped_passes.load(Ordering::Relaxed), 0, "a pass without a deadline was dropped");
    controllers.stop().await;
    assert_eq!(reconciler.dropped_passes.load(Ordering::Relaxed), 1, "the pass was not dropped at the stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_object_is_reported_with_its_key_and_other_keys_continue() {
    logs::record();
    let server = Server::shared().await;
    server.install_crd(loose_kind::crd()).await.expect("the CRD");
    let objects = server.objects_in_new_namespace("decode").await;
    let api = loose_kind::dynamic_api(&objects);
    // One object exists before the controller starts, and one is created while the controller watches.
    create_loose_object(&api, "bad1", json!({ "replicas": "many" })).await;
    create_loose_object(&api, "good1", json!({ "replicas": 1 })).await;
    let client = server.client().expect("a client");
    let controllers =
        Controllers::new(client).controller(loose_kind::marking_controller(&objects.namespace)).start();
    loose_kind::wait_until_observed(&objects, "good1").await;
    create_loose_object(&api, "bad2", json!({ "replicas": ["a", "b"] })).await;
    create_loose_object(&api, "good2", json!({ "replicas": 2 })).await;
    loose_kind::wait_until_observed(&objects, "good2").await;
    for bad in ["bad1", "bad2"] {
        let warning =
            eventually("a Warning event", TIMEOUT, async || warning_event(&objects, bad, |_| true).await)
                .await;
        println!("{bad}: {warning}");
        wait_for_log_line(&objects, bad, "expected i32").await;
    }
    let patch = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
    api.patch("bad1", &PatchParams::default(), &patch).await.expect("the object is corrected");
    loose_kind::wait_until_observed(&objects, "bad1").await;
    controllers.stop().await;
}

async fn create_loose_object(api: &Api<DynamicObject>, name: &str, spec: serde_json::Value) {
    let object = DynamicObject::new(name, &ApiResource::erase::<Loose>(&())).data(json!({ "spec": spec }));
    api.create(&PostParams::default(), &object).await.expect("the API server accepts the object");
}

/// Creates twenty good objects, more than there are workers, and waits until each was reconciled.
async fn assert_good_objects_are_reconciled(objects: &Objects) {
    for n in 0..20 {
        objects.create_addressable(&format!("good{n}"), "web").await;
    }
    for n in 0..20 {
        objects.wait_for_state(&format!("good{n}"), &objects.unavailable("seen")).await;
    }
}

/// Returns the reason and the note of a Warning event about the object with a matching reason, if there is one.
async fn warning_event(objects: &Objects, name: &str, reason: impl Fn(&str) -> bool) -> Option<String> {
    let events: Api<k8s_openapi::api::events::v1::Event> =
        Api::namespaced(objects.client.clone(), &objects.namespace);
    let list = events.list(&Default::default()).await.ok()?;
    let event = list.into_iter().find(|event| {
        event.type_.as_deref() == Some("Warning")
            && event.regarding.as_ref().and_then(|regarding| regarding.name.as_deref()) == Some(name)
            && event.reason.as_deref().is_some_and(&reason)
    })?;
    Some(format!("{}: {}", event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
}

/// Waits for a log line with the key and this message.
async fn wait_for_log_line(objects: &Objects, name: &str, message: &str) {
    let key = format!("{}/{name}", objects.namespace);
    eventually(format!("a log line with {key} and {message:?}"), TIMEOUT, async || {
        let lines = logs::lines_with(&key);
        let is_logged = lines.iter().any(|line| line.contains(message));
        if is_logged { Ok(()) } else { Err(format!("{lines:?}")) }
    })
    .await;
}
