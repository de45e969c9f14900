//! Single passes over an AddressableService, through the constructor that the binary uses.

use k8s_openapi::{
    api::core::v1::Service,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, api::DeleteParams};
use reknit::testing::{ControllerExt, InformerExt};
use reknit::{
    knative::{Addressable, Url},
    prelude::*,
    reconciler::ControllerConstructor,
    testing::{ApiServer, Given, Table, Verb, Want, each_permission_is_needed, given, nothing, table},
};
use reknit_samples::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use reknit_samples::{ClusterDomain, addressable_service::controller};

const FINALIZER: &str = "addressableservices.samples.knative.dev";
const ANOTHER_FINALIZER: &str = "example.com/backup";

/// The object `default/x`, which names this Service.
fn object_naming(service: &str) -> AddressableService {
    let mut object = AddressableService::new("x", AddressableServiceSpec { service_name: service.into() });
    object.metadata.namespace = Some("default".into());
    object.metadata.generation = Some(3);
    object.metadata.finalizers = Some(vec![FINALIZER.into()]);
    object
}

fn terminating(mut object: AddressableService) -> AddressableService {
    object.metadata.deletion_timestamp = Some(Time(Default::default()));
    object
}

fn service(namespace: &str, name: &str) -> Service {
    let metadata =
        ObjectMeta { namespace: Some(namespace.into()), name: Some(name.into()), ..ObjectMeta::default() };
    Service { metadata, ..Service::default() }
}

/// Provides a cluster domain other than the default.
fn with_cluster_domain(given: Given) -> Given {
    given.provide(ClusterDomain::new("example.org"))
}

fn with_observed_generation(mut status: AddressableServiceStatus) -> AddressableServiceStatus {
    status.duck.observed_generation = Some(3);
    status
}

fn available() -> AddressableService {
    let mut status = AddressableServiceStatus::default();
    let url = Url::http("web.default.svc.example.org");
    status.mark_service_available(Addressable { url: Some(url), ..Addressable::default() });
    AddressableService { status: Some(with_observed_generation(status)), ..object_naming("web") }
}

fn unavailable() -> AddressableService {
    let mut status = AddressableServiceStatus::default();
    status.mark_service_unavailable("web");
    AddressableService { status: Some(with_observed_generation(status)), ..object_naming("web") }
}

fn with_another_finalizer(mut object: AddressableService) -> AddressableService {
    object.metadata.finalizers.get_or_insert_default().push(ANOTHER_FINALIZER.into());
    object
}

fn withdrawn() -> AddressableService {
    let mut status = AddressableServiceStatus::default();
    status.mark_terminating();
    AddressableService { status: Some(with_observed_generation(status)), ..object_naming("web") }
}

fn without_finalizer(mut object: AddressableService) -> AddressableService {
    object.metadata.finalizers = None;
    object
}

/// Single passes that reconcile and finalize.
fn cases() -> Table<ControllerConstructor> {
    let address_withdrawn = Event::normal("AddressWithdrawn", "The address is no longer published");
    let finalizer_updated = Event::normal("FinalizerUpdate", "Updated \"x\" finalizers");
    let finalizer_error = "failed to update finalizers for \"x\"";
    table(controller as ControllerConstructor)
        .row(
            "the address of an existing Service is published",
            "default/x",
            with_cluster_domain(given(object_naming("web")).and(service("default", "web"))),
            Want::done().status(&available()),
        )
        .row(
            "an address that is already published is not written again",
            "default/x",
            with_cluster_domain(given(available()).and(service("default", "web"))),
            Want::done(),
        )
        .row(
            "a Service of another name or namespace does not count",
            "default/x",
            with_cluster_domain(given(object_naming("web")).and(service("default", "www")).and(service("shop", "web"))),
            Want::done().status(&unavailable()),
        )
        .row(
            "the address is cleared when its Service is gone",
            "default/x",
            with_cluster_domain(given(available())),
            Want::done().status(&unavailable()),
        )
        .row(
            "a new object gets its finalizer before its status",
            "default/x",
            with_cluster_domain(given(without_finalizer(object_naming("web")))),
            Want::done()
                .finalizers::<AddressableService>("default/x", &[FINALIZER])
                .status(&unavailable())
                .event(finalizer_updated.clone()),
        )
        .row(
            "no status is written if the finalizer cannot be added",
            "default/x",
            with_cluster_domain(given(without_finalizer(object_naming("web"))).failing(
                Verb::Patch,
                "addressableservices",
                403,
            )),
            Want::error(finalizer_error).finalizers::<AddressableService>("default/x", &[FINALIZER]).event(
                Event::warning(
                    "FinalizerUpdateFailed",
                    "Failed to update finalizers for \"x\": inducing failure for patch addressableservices (403 Forbidden)",
                ),
            ),
        )
        .row(
            "a status that cannot be written fails the pass",
            "default/x",
            with_cluster_domain(given(object_naming("web")).failing(Verb::Patch, "addressableservices/status", 500)),
            Want::error("failed to update status for \"x\"").status(&unavailable()).event(Event::warning(
                "UpdateFailed",
                "Failed to update status for \"x\": inducing failure for patch addressableservices/status (500 InternalError)",
            )),
        )
        .row(
            "after a conflict the object is read again and its status written",
            "default/x",
            with_cluster_domain(given(object_naming("web")).failing_times(
                Verb::Patch,
                "addressableservices/status",
                409,
                1,
            )),
            Want::done().status(&unavailable()).status(&unavailable()),
        )
        .row(
            "finalizing records an event and removes the finalizer",
            "default/x",
            with_cluster_domain(given(terminating(object_naming("web"))).and(service("default", "web"))),
            Want::done()
                .finalizers::<AddressableService>("default/x", &[])
                .event(address_withdrawn.clone())
                .event(finalizer_updated.clone()),
        )
        .row(
            "the address is withdrawn from an object that another finalizer keeps",
            "default/x",
            with_cluster_domain(
                given(terminating(with_another_finalizer(available()))).and(service("default", "web")),
            ),
            Want::done()
                .status(&withdrawn())
                .finalizers::<AddressableService>("default/x", &[ANOTHER_FINALIZER])
                .event(address_withdrawn)
                .event(finalizer_updated),
        )
        .row(
            "an object outside the selected namespace is skipped",
            "default/x",
            given(object_naming("web"))
                .and(service("default", "web"))
                .provide(select().namespace("shop")),
            Want::skip(),
        )
        .row("an absent object is skipped", "default/x", nothing(), Want::skip())
}

#[tokio::test]
async fn single_passes_reconcile_and_finalize() {
    cases().run().await;
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(cases).await;
}

#[tokio::test]
async fn a_change_of_the_service_enqueues_the_objects_that_name_it_until_they_are_finalized() {
    let server = ApiServer::new();
    let key = Key::new("default", "x");
    let objects = vec![server.insert(&object_naming("web")), server.insert(&service("default", "web"))];
    let cx = Context::preloaded("test", server.client(), objects);
    let (controller, services) = (controller(&cx).unwrap(), cx.get::<Informer<Service>>());

    assert!(controller.once(&key).await.is_ok());
    services.insert(changed_service(1));
    assert_eq!(controller.take_queued(), std::slice::from_ref(&key));

    let objects: Api<AddressableService> = Api::namespaced(cx.client(), "default");
    objects.delete("x", &DeleteParams::default()).await.unwrap();
    assert_eq!(controller.take_queued(), std::slice::from_ref(&key));
    assert!(controller.once(&key).await.is_ok());
    assert!(objects.get_opt("x").await.unwrap().is_none(), "the finalizer was not removed");
    services.insert(changed_service(2));
    assert_eq!(controller.take_queued(), []);
}

/// The Service `default/web` after this number of changes.
fn changed_service(changes: u8) -> Service {
    let mut service = service("default", "web");
    service.metadata.labels = Some([("times".into(), changes.to_string())].into());
    service.metadata.resource_version = Some(format!("{}", 100 + changes));
    service
}
