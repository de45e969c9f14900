use k8s_openapi::api::core::v1::{Namespace, Service};
use reknit::prelude::*;
struct R {
    services: Informer<Service>,
}
impl ReconcileKind for R {
    type Kind = Namespace;
    async fn reconcile_kind(&self, object: &Namespace, _: &mut ()) -> Result<Outcome> {
        let _ = self.services.get_in(object, "default", "x");
        Ok(Outcome::done())
    }
}
fn main() {}
