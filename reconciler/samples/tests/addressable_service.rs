//! Single passes over an AddressableService, through the constructor that the binary uses.

use std::error::Error as StdError;

use k8s_openapi::{
    api::core::v1::Service,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use reknit::{
    prelude::*,
    sharedmain::NamespaceFlag,
    testing::{ApiServer, Given, Passed, Verb, given},
};
use samples_apis::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use samples_controller::{ClusterDomain, addressable_service::controller};
use serde_json::{Value, json};

type Checked = std::result::Result<(), Box<dyn StdError>>;

const FINALIZER: &str = "addressableservices.samples.knative.dev";

/// `default/x`, which names this Service.
fn naming(service: &str) -> AddressableService {
    let mut object = AddressableService::new("x", AddressableServiceSpec { service_name: service.into() });
    object.metadata.namespace = Some("default".into());
    object.metadata.generation = Some(3);
    object.metadata.finalizers = Some(vec![FINALIZER.into()]);
    object
}

fn dying(mut object: AddressableService) -> AddressableService {
    object.metadata.deletion_timestamp = Some(Time(Default::default()));
    object
}

fn service(namespace: &str, name: &str) -> Service {
    let metadata =
        ObjectMeta { namespace: Some(namespace.into()), name: Some(name.into()), ..ObjectMeta::default() };
    Service { metadata, ..Service::default() }
}

fn passing(given: Given) -> impl Future<Output = Passed> {
    given.provide(ClusterDomain::new("example.org")).pass(controller, "default/x")
}

/// What the object shows after the pass: its address, and its Ready condition without the time.
fn shown(passed: &Passed) -> (Value, Value) {
    let status = passed.object::<AddressableService>("default/x").and_then(|object| object.status);
    let mut ready = json!(status.as_ref().and_then(|status| status.duck.condition("Ready")));
    if let Some(ready) = ready.as_object_mut() {
        ready.remove("lastTransitionTime");
    }
    (json!(status.and_then(|status| status.address)), ready)
}

fn available(url: &str) -> (Value, Value) {
    (json!({"url": url}), json!({"type": "Ready", "status": "True"}))
}

fn unavailable(service: &str) -> (Value, Value) {
    let message = format!("Service \"{service}\" wasn't found.");
    (
        Value::Null,
        json!({"type": "Ready", "status": "False", "reason": "ServiceUnavailable", "message": message}),
    )
}

#[tokio::test]
async fn the_address_of_an_existing_service_is_published_once() -> Checked {
    let passed = passing(given(naming("web")).and(service("default", "web"))).await;
    assert_eq!(passed.result.as_ref().ok(), Some(&Outcome::done()));
    assert_eq!(passed.writes(), ["patch addressableservices/status default/x"]);
    assert_eq!(passed.write(0).body["status"]["observedGeneration"], 3);
    assert_eq!(shown(&passed), available("http://web.default.svc.example.org"));
    assert_eq!(passed.events(), []);

    let after = passed.object::<AddressableService>("default/x").ok_or("the object went")?;
    let again = passing(given(after).and(service("default", "web"))).await;
    assert!(again.result.is_ok());
    assert_eq!(again.writes(), [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_service_of_another_name_or_namespace_is_not_the_one() {
    let passed =
        passing(given(naming("web")).and(service("default", "www")).and(service("shop", "web"))).await;
    assert_eq!(shown(&passed), unavailable("web"));
}

#[tokio::test]
async fn the_address_is_cleared_when_its_service_is_gone() {
    let mut object = naming("web");
    let mut status = AddressableServiceStatus::default();
    status.mark_service_available(Addressable { url: Some(Url::http("web")), ..Addressable::default() });
    object.status = Some(status);
    let passed = passing(given(object)).await;
    assert_eq!(passed.writes(), ["patch addressableservices/status default/x"]);
    assert_eq!(shown(&passed), unavailable("web"));
}

#[tokio::test]
async fn a_new_object_gets_its_finalizer_before_its_status() {
    let mut object = naming("web");
    object.metadata.finalizers = None;
    let passed = passing(given(object)).await;
    assert_eq!(
        passed.writes(),
        ["patch addressableservices default/x", "patch addressableservices/status default/x"]
    );
    assert_eq!(passed.write(0).body["metadata"]["finalizers"], json!([FINALIZER]));
}

#[tokio::test]
async fn finalizing_says_so_and_lets_the_object_go() {
    let passed = passing(given(dying(naming("web"))).and(service("default", "web"))).await;
    assert!(passed.result.is_ok());
    assert_eq!(passed.events()[0], Event::normal("AddressWithdrawn", "The address is no longer published"));
    assert_eq!(passed.writes(), ["patch addressableservices default/x"]);
    assert!(passed.object::<AddressableService>("default/x").is_none());
}

#[tokio::test]
async fn confined_to_one_namespace_it_reads_nothing_of_another() {
    let flags = NamespaceFlag { namespace: Some("shop".into()) };
    let passed = passing(given(naming("web")).and(service("default", "web")).provide(flags)).await;
    assert_eq!(passed.writes(), [""; 0]);
}

#[tokio::test]
async fn a_change_of_the_service_wakes_whom_it_is_named_by_until_that_is_finalized() {
    let server = ApiServer::new();
    let key = Key::new("default", "x");
    let objects = vec![server.hold(&naming("web")), server.hold(&service("default", "web"))];
    let cx = Context::preloaded("test", server.client(), objects);
    let reconciled = controller(&cx).map(|controller| (controller, cx.get::<Informer<Service>>()));
    let (controller, services) = reconciled.unwrap();

    assert!(controller.once(&key).await.is_ok());
    services.apply(labelled(1));
    assert_eq!(controller.queued(), std::slice::from_ref(&key));

    cx.get::<Informer<AddressableService>>().apply(dying(naming("web")));
    server.fail(Verb::Patch, "addressableservices", 500);
    assert!(controller.once(&key).await.is_err(), "the finalizer stays, so the object does");
    assert_eq!(controller.queued(), [key]);
    services.apply(labelled(2));
    assert_eq!(controller.queued(), []);
}

/// `default/web`, changed so many times.
fn labelled(times: u8) -> Service {
    let mut service = service("default", "web");
    service.metadata.labels = Some([("times".into(), times.to_string())].into());
    service.metadata.resource_version = Some(format!("{}", 100 + times));
    service
}
