//! The measured controller of AddressableServices: one status write for each object, and no finalizer.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use reknit::{
    apis::service_host_name,
    knative::{Addressable, Url},
    prelude::*,
};
use reknit_samples::{AddressableService, AddressableServiceStatus};

/// Publishes the address of the Service that each AddressableService names.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<AddressableService>(cx);
    let services = build.track::<Service>();
    Ok(build.reconciler(Reconciler { services }).build())
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
            Some(service) => {
                let host = service_host_name(name, &service.namespace().unwrap_or_default());
                status.mark_service_available(Addressable {
                    url: Some(Url::http(host)),
                    ..Addressable::default()
                });
            }
        }
        Ok(Outcome::done())
    }
}
