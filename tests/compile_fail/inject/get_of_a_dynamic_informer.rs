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
fn f(cx: &Context) {
    let _t: Informer<kube::api::DynamicObject> = cx.get();
}
fn main() {}
