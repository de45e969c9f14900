//! The controller of AddressableService, which publishes the address of the Service that an object names.

use k8s_openapi::api::core::v1::Service;
use reknit::prelude::*;

use super::{AddressableService, AddressableServiceStatus};
use crate::ClusterDomain;

/// Watches AddressableServices and the Services that they name.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<AddressableService>(cx);
    let services = build.track::<Service>();
    Ok(build.reconciler(Reconciler { services, domain: cx.get() }).finalizing().build())
}

struct Reconciler {
    services: Tracked<Service>,
    domain: ClusterDomain,
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
            Some(service) => status.mark_service_available(self.domain.address_of(&service)),
        }
        Ok(Outcome::done())
    }
}

/// Withdraws the address, which would otherwise stay in the status for as long as another finalizer keeps the object.
impl FinalizeKind for Reconciler {
    async fn finalize_kind(
        &self,
        _: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        status.mark_terminating();
        Ok(Outcome::done().event(Event::normal("AddressWithdrawn", "The address is no longer published")))
    }
}
