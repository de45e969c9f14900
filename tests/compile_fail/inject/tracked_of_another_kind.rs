use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use reknit::prelude::*;
struct R {
    services: Tracked<Service>,
}
impl ReconcileKind for R {
    type Kind = Namespace;
    async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}
fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Namespace>(cx);
    let services = build.track::<Pod>();
    Ok(build.reconciler(R { services }).build())
}
fn main() {}
