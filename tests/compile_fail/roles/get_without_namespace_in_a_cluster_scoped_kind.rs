use kube::CustomResource;
use reknit::prelude::*;
use serde::{Deserialize, Serialize};
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "g.io", version = "v1", kind = "Thing", status = "ThingStatus")]
pub struct ThingSpec {
    pub n: u8,
}
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
pub struct ThingStatus {
    #[serde(flatten)]
    pub duck: DuckStatus,
}
kind!(Thing { status: ThingStatus, conditions: knative(duck) });
use k8s_openapi::api::core::v1::Service;
struct R {
    services: Tracked<Service>,
}
impl ReconcileKind for R {
    type Kind = Thing;
    async fn reconcile_kind(&self, o: &Thing, _: &mut ThingStatus) -> Result<Outcome> {
        let _ = self.services.get(o, "x");
        Ok(Outcome::done())
    }
}
fn main() {}
