//! A controller that publishes the address of the Service that an `AddressableService` names. Other modules use its
//! Kind.
use k8s_openapi::api::core::v1::Service;
use kube::CustomResource;
use reknit::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(
    group = "samples.knative.dev",
    version = "v1alpha1",
    kind = "AddressableService",
    namespaced,
    status = "AddressableServiceStatus"
)]
#[serde(rename_all = "camelCase")]
pub struct AddressableServiceSpec {
    pub service_name: String,
}
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
pub struct AddressableServiceStatus {
    #[serde(flatten)]
    pub duck: DuckStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}
kind!(AddressableService { status: AddressableServiceStatus, conditions: knative(duck) });
impl AddressableServiceStatus {
    fn mark_service_unavailable(&mut self, name: &str) {
        self.address = None;
        AddressableService::CONDITIONS.manage(self).mark_false(
            "Ready",
            "ServiceUnavailable",
            format!("Service {name:?} wasn't found."),
        );
    }
    fn mark_service_available(&mut self, address: String) {
        self.address = Some(address);
        AddressableService::CONDITIONS.manage(self).mark_true("Ready");
    }
}

/// Watches AddressableServices, and the Services that they name.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<AddressableService>(cx);
    let services = build.track::<Service>();
    Ok(build.reconciler(Reconciler { services }).finalizing().build())
}

struct Reconciler {
    services: Tracked<Service>,
}

impl ReconcileKind for Reconciler {
    type Kind = AddressableService;

    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        let name = &object.spec.service_name;
        match self.services.get(object, name) {
            None => status.mark_service_unavailable(name),
            Some(_) => status.mark_service_available(format!("http://{name}.default.svc.cluster.local")),
        }
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Reconciler {
    async fn finalize_kind(
        &self,
        _: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        Ok(Outcome::done().event(Event::normal("AddressWithdrawn", "The address is no longer published")))
    }
}
