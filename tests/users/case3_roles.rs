//! The roles of a reconciler, which are opt-in.
use crate::case0_addressable::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use reknit::{
    prelude::*,
    reconciler::ObserveDeletion,
    testing::{given, nothing},
};

struct All;
impl ReconcileKind for All {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        _: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}
impl FinalizeKind for All {
    async fn finalize_kind(
        &self,
        _: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        status.address = Some("going".into());
        Ok(Outcome::after(std::time::Duration::from_secs(1)))
    }
}
impl ObserveKind for All {
    async fn observe_kind(&self, _: &AddressableService) -> Result<Outcome> {
        Ok(Outcome::done().event(Event::normal("Observed", "seen")))
    }
}
impl ObserveDeletion for All {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        Err(format!("{key} is gone").into())
    }
}
fn controller(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<AddressableService>(cx)
        .reconciler(All)
        .finalizing()
        .observing()
        .observing_deletion()
        .build())
}
fn some() -> AddressableService {
    crate::at(
        AddressableService::new("x", AddressableServiceSpec { service_name: "web".into() }),
        Some("default"),
        1,
    )
}
#[tokio::test]
async fn a_follower_observes_and_writes_nothing() {
    let passed = given(some()).following().pass(controller, "default/x").await;
    assert!(passed.writes().is_empty());
    assert_eq!(passed.events(), [Event::normal("Observed", "seen")]);
}
#[tokio::test]
async fn an_absent_object_goes_to_the_deletion_observer() {
    assert_eq!(
        nothing().pass(controller, "default/x").await.result.unwrap_err().to_string(),
        "default/x is gone"
    );
}
#[tokio::test]
async fn a_finalizer_that_is_not_done_keeps_its_finalizer_and_says_so_in_status() {
    let mut dying = some();
    dying.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Default::default()));
    dying.metadata.finalizers = Some(vec!["addressableservices.samples.knative.dev".into()]);
    let passed = given(dying).pass(controller, "default/x").await;
    assert_eq!(passed.writes(), ["patch addressableservices/status default/x"]);
    assert_eq!(
        passed.object::<AddressableService>("default/x").unwrap().status.unwrap().address.as_deref(),
        Some("going")
    );
}
