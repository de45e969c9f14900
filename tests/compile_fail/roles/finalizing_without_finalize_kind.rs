use kube::CustomResource;
use reknit::prelude::*;
use serde::{Deserialize, Serialize};
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "g.io", version = "v1", kind = "Thing", namespaced, status = "ThingStatus")]
pub struct ThingSpec {
    pub n: u8,
}
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
pub struct ThingStatus {
    #[serde(flatten)]
    pub duck: DuckStatus,
}
kind!(Thing { status: ThingStatus, conditions: knative(duck) });
struct R;
impl ReconcileKind for R {
    type Kind = Thing;
    async fn reconcile_kind(&self, _: &Thing, _: &mut ThingStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}
fn controller(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<Thing>(cx).reconciler(R).finalizing().build())
}
fn main() {}
