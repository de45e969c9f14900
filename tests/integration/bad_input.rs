//! Invalid input: nothing crashes, and nothing is lost.

use kube::api::{Patch, PatchParams};
use reknit::prelude::*;
use samples_apis::{AddressableService, AddressableServiceStatus};
use serde_json::{Value, json};

use crate::support::{
    in_process::{InProcess, make},
    logs, loose,
    objects::Objects,
    process,
    server::Server,
};

#[tokio::test(flavor = "multi_thread")]
async fn malformed_keys_are_dropped_and_other_keys_continue() {
    logs::record();
    let server = Server::shared().await;
    let objects = server.objects("keys").await;
    let config = server.config().expect("a configuration");
    let (send, queue) = std::sync::mpsc::channel();
    let selection = select().namespace(&objects.namespace);
    let controllers = InProcess::start(
        config,
        [make(move |cx: &Context| {
            let build = Controller::selected::<AddressableService>(cx, selection);
            send.send(build.queue()).expect("the test listens");
            Ok(build.reconciler(Marking).finalizing().build())
        })],
    );
    let queue: Queue = queue.recv().expect("the constructor ran");
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
    objects.create("x", "web").await;
    objects.shows("x", &objects.unavailable("seen")).await;
    assert!(logs::with("a malformed key is dropped").len() >= 3, "nobody is told");
    controllers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_without_name_or_namespace_do_not_stop_the_controller() {
    let server = Server::shared().await;
    let objects = server.objects("nameless").await;
    let proxy = server.proxy().await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let mut controller = process::controller(&kubeconfig).alone().within(&objects.namespace).spawn();
    objects.create_service("web").await;
    objects.create("x", "web").await;
    let whole = serde_json::to_value(objects.ready("x", "web").await).expect("JSON");
    for resource in ["addressableservices", "services"] {
        proxy.asked("the watch", |request| request.is("watch", resource)).await;
    }
    for lacking in [&["name"][..], &["namespace"], &["name", "namespace"], &["uid"], &["resourceVersion"]] {
        let mut object = whole.clone();
        lacking
            .iter()
            .for_each(|field| drop(object["metadata"].as_object_mut().expect("metadata").remove(*field)));
        proxy.inject("addressableservices", "MODIFIED", &object);
        proxy.inject("services", "ADDED", &service_like(&object));
    }
    proxy.inject("addressableservices", "ADDED", &json!({}));
    proxy.inject("addressableservices", "DELETED", &json!({ "metadata": {} }));
    proxy.inject("services", "NEWS", &Value::Null);
    for (resource, event) in [("addressableservices", "DELETED"), ("services", "NEWS")] {
        proxy.sent("the last line", |line| line.resource == resource && line.event == event).await;
    }
    objects.create("y", "web").await;
    objects.ready("y", "web").await;
    assert!(controller.is_running(), "{}", controller.tail());
    let panicked = controller.lines().into_iter().find(|line| line.to_string().contains("panicked"));
    assert_eq!(panicked, None);
    controller.stop().await;
}

fn service_like(object: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": object["metadata"] })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_of_a_mebibyte_is_preserved() {
    let server = Server::shared().await;
    let objects = server.objects("annotation").await;
    let proxy = server.proxy().await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let controller = process::controller(&kubeconfig).alone().within(&objects.namespace).spawn();
    objects.create("x", "web").await;
    // The server accepts this size. The injected object has a mebibyte, which a server might accept too.
    let allowed = "a".repeat(255 * 1024);
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { "large": allowed } } }));
    objects.addressables().patch("x", &PatchParams::default(), &patch).await.expect("the server takes it");
    let seen = objects.shows("x", &objects.unavailable("web")).await;
    let mut object = serde_json::to_value(seen).expect("JSON");
    object["metadata"]["annotations"]["larger"] = Value::from("b".repeat(1024 * 1024));
    proxy.inject("addressableservices", "MODIFIED", &object);

    objects.create_service("web").await;
    let ready = objects.ready("x", "web").await;
    assert_eq!(ready.metadata.annotations.and_then(|mut a| a.remove("large")), Some(allowed));
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_too_large_for_the_server_does_not_block_other_keys() {
    let server = Server::shared().await;
    let objects = server.objects("large").await;
    let controller = process::controller(server.kubeconfig()).alone().within(&objects.namespace).spawn();
    // The status repeats the name, so that the object exceeds the limit of etcd.
    objects.create("x", &"w".repeat(1_000_000)).await;
    objects.event("x", "UpdateFailed").await;
    objects.create("y", "web").await;
    objects.shows("y", &objects.unavailable("web")).await;
    objects.rename_service("x", "web").await;
    objects.shows("x", &objects.unavailable("web")).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_fields_of_a_newer_version_survive_a_status_write() {
    let server = Server::shared().await;
    server.install_crd(loose::definition()).await.expect("the CRD");
    let objects = server.objects("newer").await;
    let api = loose::untyped(&objects);
    let kind = kube::discovery::ApiResource::erase::<loose::Loose>(&());
    let object = kube::api::DynamicObject::new("x", &kind).data(json!({ "spec": { "replicas": 1 } }));
    api.create(&Default::default(), &object).await.expect("it is created");
    let newer = json!({
        "later": "than ours", "address": { "url": "http://old", "weight": 3 },
        "annotations": { "a": "b" }, "observedGeneration": 0,
    });
    let patch = Patch::Merge(json!({ "status": newer }));
    api.patch_status("x", &PatchParams::default(), &patch).await.expect("a newer version writes");

    let config = server.config().expect("a configuration");
    let controllers = InProcess::start(config, [make(keeping_the_address(&objects))]);
    let status = loose::seen(&objects, "x").await.data["status"].clone();
    println!("{status}");
    assert_eq!(status["later"], "than ours");
    assert_eq!(status["address"], json!({ "url": "http://new", "weight": 3 }));
    assert_eq!(status["annotations"], json!({ "a": "b" }));
    controllers.stop().await;
}

/// Changes the URL of the address, without knowing its weight.
fn keeping_the_address(objects: &Objects) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let selection = select().namespace(&objects.namespace);
    move |cx| Ok(Controller::selected::<loose::Loose>(cx, selection).reconciler(Readdressing).build())
}

struct Readdressing;

impl ReconcileKind for Readdressing {
    type Kind = loose::Loose;

    async fn reconcile_kind(
        &self,
        _: &loose::Loose,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        let url = "http://new".parse().permanent()?;
        status.mark_service_available(Addressable { url: Some(url), ..Addressable::default() });
        Ok(Outcome::done())
    }
}

struct Marking;

impl ReconcileKind for Marking {
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

impl FinalizeKind for Marking {
    async fn finalize_kind(
        &self,
        _: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}
