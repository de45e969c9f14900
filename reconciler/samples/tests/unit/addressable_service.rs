//! Single passes over an AddressableService, through the constructor that the binary uses.

use k8s_openapi::{
    api::core::v1::Service,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, api::DeleteParams};
use reknit::testing::{ControllerExt, InformerExt};
use reknit::{
    prelude::*,
    sharedmain::NamespaceFlag,
    testing::{ApiServer, Given, Verb, Want, given, nothing, table},
};
use samples_apis::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use samples_controller::{ClusterDomain, addressable_service::controller};

const FINALIZER: &str = "addressableservices.samples.knative.dev";

/// The object `default/x`, which names this Service.
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

/// These objects in a cluster with another domain than the default.
fn in_cluster(given: Given) -> Given {
    given.provide(ClusterDomain::new("example.org"))
}

fn observed(status: AddressableServiceStatus) -> AddressableServiceStatus {
    let mut status = status;
    status.duck.observed_generation = Some(3);
    status
}

fn available() -> AddressableService {
    let mut status = AddressableServiceStatus::default();
    let url = Url::http("web.default.svc.example.org");
    status.mark_service_available(Addressable { url: Some(url), ..Addressable::default() });
    AddressableService { status: Some(observed(status)), ..naming("web") }
}

fn unavailable() -> AddressableService {
    let mut status = AddressableServiceStatus::default();
    status.mark_service_unavailable("web");
    AddressableService { status: Some(observed(status)), ..naming("web") }
}

fn without_finalizer(mut object: AddressableService) -> AddressableService {
    object.metadata.finalizers = None;
    object
}

#[tokio::test]
async fn single_passes_reconcile_and_finalize() {
    let withdrawn = Event::normal("AddressWithdrawn", "The address is no longer published");
    let finalized = Event::normal("FinalizerUpdate", "Updated \"x\" finalizers");
    let gone = "failed to update finalizers for \"x\"";
    table(controller)
        .row(
            "the address of an existing Service is published",
            "default/x",
            in_cluster(given(naming("web")).and(service("default", "web"))),
            Want::done().status(&available()),
        )
        .row(
            "once",
            "default/x",
            in_cluster(given(available()).and(service("default", "web"))),
            Want::done(),
        )
        .row(
            "a Service of another name or namespace is not the one",
            "default/x",
            in_cluster(given(naming("web")).and(service("default", "www")).and(service("shop", "web"))),
            Want::done().status(&unavailable()),
        )
        .row(
            "the address is cleared when its Service is gone",
            "default/x",
            in_cluster(given(available())),
            Want::done().status(&unavailable()),
        )
        .row(
            "a new object gets its finalizer before its status",
            "default/x",
            in_cluster(given(without_finalizer(naming("web")))),
            Want::done()
                .finalizers::<AddressableService>("default/x", &[FINALIZER])
                .status(&unavailable())
                .event(finalized.clone()),
        )
        .row(
            "no finalizer, no status",
            "default/x",
            in_cluster(given(without_finalizer(naming("web"))).failing(
                Verb::Patch,
                "addressableservices",
                403,
            )),
            Want::error(gone).finalizers::<AddressableService>("default/x", &[FINALIZER]).event(
                Event::warning(
                    "FinalizerUpdateFailed",
                    "Failed to update finalizers for \"x\": inducing failure for patch addressableservices (403 Forbidden)",
                ),
            ),
        )
        .row(
            "a status that cannot be written fails the pass",
            "default/x",
            in_cluster(given(naming("web")).failing(Verb::Patch, "addressableservices/status", 500)),
            Want::error("failed to update status for \"x\"").status(&unavailable()).event(Event::warning(
                "UpdateFailed",
                "Failed to update status for \"x\": inducing failure for patch addressableservices/status (500 InternalError)",
            )),
        )
        .row(
            "finalizing says so and lets the object go",
            "default/x",
            in_cluster(given(dying(naming("web"))).and(service("default", "web"))),
            Want::done()
                .finalizers::<AddressableService>("default/x", &[])
                .event(withdrawn)
                .event(finalized),
        )
        .row(
            "confined to one namespace it reads nothing of another",
            "default/x",
            given(naming("web"))
                .and(service("default", "web"))
                .provide(NamespaceFlag { namespace: Some("shop".into()) }),
            Want::skip(),
        )
        .row("an object that is gone is nothing to do", "default/x", nothing(), Want::skip())
        .run()
        .await;
}

#[tokio::test]
async fn a_change_of_the_service_enqueues_the_objects_that_name_it_until_they_are_finalized() {
    let server = ApiServer::new();
    let key = Key::new("default", "x");
    let objects = vec![server.hold(&naming("web")), server.hold(&service("default", "web"))];
    let cx = Context::preloaded("test", server.client(), objects);
    let reconciled = controller(&cx).map(|controller| (controller, cx.get::<Informer<Service>>()));
    let (controller, services) = reconciled.unwrap();

    assert!(controller.once(&key).await.is_ok());
    services.insert(labelled(1));
    assert_eq!(controller.queued(), std::slice::from_ref(&key));

    let objects: Api<AddressableService> = Api::namespaced(cx.client(), "default");
    objects.delete("x", &DeleteParams::default()).await.unwrap();
    assert_eq!(controller.queued(), std::slice::from_ref(&key));
    assert!(controller.once(&key).await.is_ok());
    assert!(objects.get_opt("x").await.unwrap().is_none(), "it is finalized");
    services.insert(labelled(2));
    assert_eq!(controller.queued(), []);
}

/// The Service `default/web` after this number of changes.
fn labelled(times: u8) -> Service {
    let mut service = service("default", "web");
    service.metadata.labels = Some([("times".into(), times.to_string())].into());
    service.metadata.resource_version = Some(format!("{}", 100 + times));
    service
}
