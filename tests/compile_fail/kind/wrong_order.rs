use reknit::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Thing", namespaced, status = "DuckStatus")]
struct ThingSpec {}

kind!(Thing { conditions: knative(), status: DuckStatus });

fn main() {}
