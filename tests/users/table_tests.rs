//! Table tests of the controller in `addressable_service`.
use crate::addressable_service::{AddressableService, AddressableServiceSpec, controller};
use k8s_openapi::api::core::v1::Service;
use reknit::testing::ControllerExt;
use reknit::{
    prelude::*,
    testing::{Verb, given},
};

const FINALIZER: &str = "addressableservices.samples.knative.dev";
/// An object that has its finalizer and names this Service.
fn object_naming(service: &str) -> AddressableService {
    let mut object = crate::with_metadata(
        AddressableService::new("x", AddressableServiceSpec { service_name: service.into() }),
        Some("default"),
        3,
    );
    object.metadata.finalizers = Some(vec![FINALIZER.into()]);
    object
}
fn service(name: &str) -> Service {
    let mut service = Service::default();
    service.metadata.name = Some(name.into());
    service.metadata.namespace = Some("default".into());
    service
}

#[tokio::test]
async fn the_address_of_an_existing_service_is_published() {
    let effects = given(object_naming("web")).and(service("web")).reconcile(controller, "default/x").await;
    assert_eq!(effects.result.as_ref().unwrap(), &Outcome::done());
    assert_eq!(effects.writes(), ["patch addressableservices/status default/x"]);
    let mut sent = effects.write(0).body.clone();
    let ready = sent["status"]["conditions"][0].as_object_mut().unwrap();
    assert!(ready.remove("lastTransitionTime").is_some());
    assert_eq!(
        sent,
        serde_json::json!({
            "metadata": {"resourceVersion": "1"},
            "status": {"address": "http://web.default.svc.cluster.local", "observedGeneration": 3, "conditions": [{"type": "Ready", "status": "True"}]},
        })
    );
    assert!(effects.events().is_empty());
    let after = effects.object::<AddressableService>("default/x").unwrap();
    let again = given(after).and(service("web")).reconcile(controller, "default/x").await;
    assert!(again.writes().is_empty(), "an unchanged status was written");
}
#[tokio::test]
async fn the_finalizer_is_added_first_and_the_status_write_uses_its_resource_version() {
    let mut new = object_naming("nope");
    new.metadata.finalizers = None;
    let effects = given(new).reconcile(controller, "default/x").await;
    assert_eq!(
        effects.writes(),
        ["patch addressableservices default/x", "patch addressableservices/status default/x"]
    );
    assert_eq!(effects.write(0).body["metadata"]["resourceVersion"], "1");
    assert_eq!(effects.write(1).body["metadata"]["resourceVersion"], "1001");
    assert_eq!(effects.write(1).body["status"]["conditions"][0]["message"], "Service \"nope\" wasn't found.");
}
#[tokio::test]
async fn a_finalizing_reconcile_records_its_event_and_removes_the_finalizer() {
    let mut terminating = object_naming("web");
    terminating.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Default::default()));
    let effects = given(terminating).reconcile(controller, "default/x").await;
    let withdrawn = Event::normal("AddressWithdrawn", "The address is no longer published");
    assert_eq!(effects.events(), [withdrawn, Event::normal("FinalizerUpdate", "Updated \"x\" finalizers")]);
    assert_eq!(effects.writes().last().unwrap(), "patch addressableservices default/x");
    assert!(effects.object::<AddressableService>("default/x").is_none(), "the object was not deleted");
}
#[tokio::test]
async fn a_failed_status_write_is_the_error_of_the_reconcile() {
    let effects = given(object_naming("web"))
        .failing(Verb::Patch, "addressableservices/status", 500)
        .reconcile(controller, "default/x")
        .await;
    assert!(effects.result.is_err());
    assert_eq!(effects.events().len(), 1);
    assert_eq!(effects.events()[0].reason, "UpdateFailed");
    let effects = given(object_naming("web"))
        .failing(Verb::Patch, "addressableservices/status", 409)
        .reconcile(controller, "default/x")
        .await;
    assert!(effects.result.as_ref().unwrap_err().is_conflict());
    assert!(effects.events().is_empty());
}
#[tokio::test]
async fn a_reconcile_can_be_tested_with_any_tower_service() {
    let objects = vec![serde_json::to_value(object_naming("web")).unwrap()];
    let controller = {
        let cx = Context::preloaded("test", crate::unreachable_client(), objects);
        controller(&cx).unwrap()
    };
    assert!(controller.once(&Key::new("default", "x")).await.is_err());
}
