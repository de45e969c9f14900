//! The Kind WarmGreeting.

use kube::CustomResource;
use reknit::{apis::structural, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(
    group = "hello.example.com",
    version = "v9alpha1",
    kind = "WarmGreeting",
    plural = "warmgreetings",
    namespaced,
    status = "DuckStatus"
)]
#[kube(printcolumn(
    name = "Ready",
    type_ = "string",
    json_path = ".status.conditions[?(@.type=='Ready')].status"
))]
#[schemars(transform = structural)]
#[serde(rename_all = "camelCase")]
pub struct WarmGreetingSpec {
    /// A first field.
    pub text: String,
}

kind!(WarmGreeting {
    status: DuckStatus,
    conditions: knative(),
    // reknit:scaffold:defaults
});
