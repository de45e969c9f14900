//! A reconciler with all roles: reconcile, finalize, observe, and observe deletions.
use crate::addressable_service::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use reknit::{
    prelude::*,
    reconciler::ObserveDeletion,
    testing::{given, nothing},
};

struct AllRoles;
impl ReconcileKind for AllRoles {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        _: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}
impl FinalizeKind for AllRoles {
    async fn finalize_kind(
        &self,
        _: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        status.address = Some("finalizing".into());
        Ok(Outcome::after(std::time::Duration::from_secs(1)))
    }
}
impl ObserveKind for AllRoles {
    async fn observe_kind(&self, _: &AddressableService) -> Result<Outcome> {
        Ok(Outcome::done().event(Event::normal("Observed", "seen")))
    }
}
impl ObserveDeletion for AllRoles {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        Err(format!("{key} is gone").into())
    }
}
fn controller(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<AddressableService>(cx)
        .reconciler(AllRoles)
        .finalizing()
        .observing_as_follower()
        .observing_deletion_as_leader()
        .build())
}
fn object() -> AddressableService {
    crate::with_metadata(
        AddressableService::new("x", AddressableServiceSpec { service_name: "web".into() }),
        Some("default"),
        1,
    )
}
#[tokio::test]
async fn a_follower_observes_and_writes_nothing() {
    let effects = given(object()).following().reconcile(controller, "default/x").await;
    assert!(effects.writes().is_empty());
    assert_eq!(effects.events(), [Event::normal("Observed", "seen")]);
}
#[tokio::test]
async fn observe_deletion_is_called_for_an_absent_object() {
    assert_eq!(
        nothing().reconcile(controller, "default/x").await.result.unwrap_err().to_string(),
        "default/x is gone"
    );
}
#[tokio::test]
async fn a_finalizer_that_requeues_writes_its_status_and_keeps_the_finalizer() {
    let mut terminating = object();
    terminating.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Default::default()));
    terminating.metadata.finalizers = Some(vec!["addressableservices.samples.knative.dev".into()]);
    let effects = given(terminating).reconcile(controller, "default/x").await;
    assert_eq!(effects.writes(), ["patch addressableservices/status default/x"]);
    assert_eq!(
        effects.object::<AddressableService>("default/x").unwrap().status.unwrap().address.as_deref(),
        Some("finalizing")
    );
}
