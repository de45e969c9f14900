//! Invalid input: malformed keys, objects without metadata, large objects and unknown fields.

use kube::api::{Patch, PatchParams};
use reknit::{knative::Addressable, prelude::*, testing::Controllers};
use reknit_samples::{AddressableService, AddressableServiceStatus};
use serde_json::{Value, json};

use crate::support::{logs, loose_kind, objects::Objects, process, server::Server};

#[tokio::test(flavor = "multi_thread")]
async fn malformed_keys_are_dropped_and_other_keys_continue() {
    logs::record();
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("keys").await;
    let client = server.client().expect("a client");
    let (sender, receiver) = std::sync::mpsc::channel();
    let selection = select().namespace(&objects.namespace);
    let controllers = Controllers::new(client)
        .controller(move |cx: &Context| {
            let build = Controller::selected::<AddressableService>(cx, selection);
            sender.send(build.queue()).expect("the receiver exists");
            Ok(build.reconciler(MarkingReconciler).finalizing().build())
        })
        .start();
    let queue: Queue = receiver.recv().expect("the constructor ran");
    let namespace = objects.namespace.as_str();
    for key in [
        Key::new(None, ""),
        Key::new(namespace, ""),
        Key::new("", "x"),
        Key::new(namespace, "a/b/c"),
        Key::new("../..", "../secrets/x"),
        Key::new(namespace, &"long".repeat(100_000)),
    ] {
        queue.add(key);
    }
    objects.create_addressable("x", "web").await;
    objects.wait_for_state("x", &objects.unavailable("seen")).await;
    assert!(
        logs::lines_with("a malformed key is dropped").len() >= 3,
        "fewer than three malformed keys are logged"
    );
    controllers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_without_name_or_namespace_do_not_stop_the_controller() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("nameless").await;
    let proxy = server.proxy().await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let mut controller =
        process::controller(&kubeconfig).without_leader_election().in_namespace(&objects.namespace).spawn();
    objects.create_service("web").await;
    objects.create_addressable("x", "web").await;
    let complete = serde_json::to_value(objects.wait_until_ready("x", "web").await).expect("JSON");
    for resource in ["addressableservices", "services"] {
        proxy.wait_for_request("the watch", |request| request.is("watch", resource)).await;
    }
    for missing_fields in
        [&["name"][..], &["namespace"], &["name", "namespace"], &["uid"], &["resourceVersion"]]
    {
        let mut object = complete.clone();
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        missing_fields.iter().for_each(|field| drop(metadata.remove(*field)));
        proxy.inject_event("addressableservices", "MODIFIED", &object);
        proxy.inject_event("services", "ADDED", &service_with_metadata_of(&object));
    }
    proxy.inject_event("addressableservices", "ADDED", &json!({}));
    proxy.inject_event("addressableservices", "DELETED", &json!({ "metadata": {} }));
    proxy.inject_event("services", "UNKNOWN", &Value::Null);
    for (resource, event) in [("addressableservices", "DELETED"), ("services", "UNKNOWN")] {
        proxy
            .wait_for_line("the last injected line", |line| line.resource == resource && line.event == event)
            .await;
    }
    objects.create_addressable("y", "web").await;
    objects.wait_until_ready("y", "web").await;
    assert!(controller.is_running(), "{}", controller.last_lines());
    let panicked = controller.lines().into_iter().find(|line| line.to_string().contains("panicked"));
    assert_eq!(panicked, None);
    controller.stop().await;
}

fn service_with_metadata_of(object: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": object["metadata"] })
}

#[tokio::test(flavor = "multi_thread")]
async fn large_annotations_are_preserved_and_do_not_stop_reconciles() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("annotation").await;
    let proxy = server.proxy().await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let controller =
        process::controller(&kubeconfig).without_leader_election().in_namespace(&objects.namespace).spawn();
    objects.create_addressable("x", "web").await;
    // The API server accepts at most 256 KiB of annotations, so the annotation of 1 MiB is injected into the watch.
    let accepted = "a".repeat(255 * 1024);
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { "large": accepted } } }));
    objects
        .addressables()
        .patch("x", &PatchParams::default(), &patch)
        .await
        .expect("the API server accepts the annotation");
    let reconciled = objects.wait_for_state("x", &objects.unavailable("web")).await;
    let mut object = serde_json::to_value(reconciled).expect("JSON");
    object["metadata"]["annotations"]["larger"] = Value::from("b".repeat(1024 * 1024));
    proxy.inject_event("addressableservices", "MODIFIED", &object);

    objects.create_service("web").await;
    let ready = objects.wait_until_ready("x", "web").await;
    assert_eq!(
        ready.metadata.annotations.and_then(|mut annotations| annotations.remove("large")),
        Some(accepted)
    );
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_too_large_for_etcd_does_not_block_other_keys() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("large").await;
    let controller = process::controller(server.kubeconfig())
        .without_leader_election()
        .in_namespace(&objects.namespace)
        .spawn();
    // The status repeats the first 32 KiB of the Service name of the spec, so that the object would exceed the size limit
    // of etcd, 1.5 MiB.
    objects.create_addressable("x", &"w".repeat(1_550_000)).await;
    objects.wait_for_event("x", "UpdateFailed").await;
    objects.create_addressable("y", "web").await;
    objects.wait_for_state("y", &objects.unavailable("web")).await;
    objects.set_service_name("x", "web").await;
    objects.wait_for_state("x", &objects.unavailable("web")).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_fields_of_a_newer_version_survive_a_status_write() {
    let server = Server::shared().await;
    server.install_crd(loose_kind::crd()).await.expect("the CRD");
    let objects = server.objects_in_new_namespace("newer").await;
    let api = loose_kind::dynamic_api(&objects);
    let kind = kube::discovery::ApiResource::erase::<loose_kind::Loose>(&());
    let object = kube::api::DynamicObject::new("x", &kind).data(json!({ "spec": { "replicas": 1 } }));
    api.create(&Default::default(), &object).await.expect("the object is created");
    // A status as a newer version of the controller would write it.
    let newer_status = json!({
        "unknown": "text", "address": { "url": "http://old", "weight": 3 },
        "annotations": { "a": "b" }, "observedGeneration": 0,
    });
    let patch = Patch::Merge(json!({ "status": newer_status }));
    api.patch_status("x", &PatchParams::default(), &patch).await.expect("the status is patched");

    let client = server.client().expect("a client");
    let controllers = Controllers::new(client).controller(address_controller(&objects)).start();
    let status = loose_kind::wait_until_observed(&objects, "x").await.data["status"].clone();
    println!("{status}");
    assert_eq!(status["unknown"], "text");
    assert_eq!(status["address"], json!({ "url": "http://new", "weight": 3 }));
    assert_eq!(status["annotations"], json!({ "a": "b" }));
    controllers.stop().await;
}

/// Returns the constructor of a controller that sets the URL of the address. Its Rust type of an address lacks the
/// field `weight` of the newer version.
fn address_controller(objects: &Objects) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let selection = select().namespace(&objects.namespace);
    move |cx| {
        Ok(Controller::selected::<loose_kind::Loose>(cx, selection).reconciler(AddressReconciler).build())
    }
}

struct AddressReconciler;

impl ReconcileKind for AddressReconciler {
    type Kind = loose_kind::Loose;

    async fn reconcile_kind(
        &self,
        _: &loose_kind::Loose,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        let url = "http://new".parse().permanent()?;
        status.mark_service_available(Addressable { url: Some(url), ..Addressable::default() });
        Ok(Outcome::done())
    }
}

struct MarkingReconciler;

impl ReconcileKind for MarkingReconciler {
    type Kind = AddressableService;

    async fn reconcile_kind(
        &self,
        _: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        status.mark_service_unavailable("seen");
        Ok(Outcome::done())
    }
}

impl FinalizeKind for MarkingReconciler {
    async fn finalize_kind(
        &self,
        _: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}
