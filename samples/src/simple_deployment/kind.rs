//! The SimpleDeployment Kind, which keeps a number of pods running.

use kube::CustomResource;
use reknit::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The label that holds the name of the `SimpleDeployment` a pod belongs to.
pub const POD_OWNER: &str = "samples.knative.dev/podOwner";

/// Keeps a number of pods of one image running.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "samples.knative.dev",
    version = "v1alpha1",
    kind = "SimpleDeployment",
    doc = "Keeps a number of pods of one image running.",
    namespaced,
    status = "SimpleDeploymentStatus",
    derive = "Default",
    derive = "PartialEq",
    category = "all",
    category = "knative",
    label("app.kubernetes.io/name", "knative-samples"),
    label("app.kubernetes.io/version", "devel"),
    label("samples.knative.dev/release", "devel"),
    label("knative.dev/crd-install", "true"),
    // The pods get the name as the value of a label, which has at most 63 characters.
    validation = Rule::new("self.metadata.name.size() <= 63").message("the name may have 63 characters at most"),
    printcolumn = r#"{"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"}"#,
    printcolumn = r#"{"name": "ReadyReplicas", "type": "integer", "jsonPath": ".status.readyReplicas"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SimpleDeploymentSpec {
    /// The image of the pods. Pods of another image are replaced.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// The number of pods. The default is one.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
}

fn default_replicas() -> i32 {
    1
}

/// The state that the controller found.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SimpleDeploymentStatus {
    /// The conditions and the observed generation.
    #[serde(flatten)]
    pub duck: DuckStatus,
    /// The number of ready pods.
    #[serde(default)]
    pub ready_replicas: i32,
}

kind!(SimpleDeployment { status: SimpleDeploymentStatus, conditions: knative(duck) });

impl SimpleDeploymentStatus {
    /// Records that all pods are ready.
    pub fn mark_pods_ready(&mut self) {
        SimpleDeployment::CONDITIONS.manage(self).mark_true("Ready");
    }

    /// Records the number of pods that are not ready or do not exist yet.
    pub fn mark_pods_not_ready(&mut self, missing: i32) {
        let message = format!("{missing} pods are not ready yet");
        SimpleDeployment::CONDITIONS.manage(self).mark_false("Ready", "PodsNotReady", message);
    }

    /// Records why pods could not be created or deleted.
    pub fn mark_pods_refused(&mut self, reason: &str, message: &str) {
        SimpleDeployment::CONDITIONS.manage(self).mark_false("Ready", reason, message);
    }
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_default_number_of_pods_is_one() {
        let spec: SimpleDeploymentSpec = serde_json::from_value(json!({"image": "nginx"})).unwrap();
        assert_eq!(spec.replicas, 1);
    }

    #[test]
    fn the_schema_has_the_default_and_the_limits() {
        let crd = serde_json::to_value(SimpleDeployment::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = &schema["properties"]["spec"];
        assert_eq!(spec["required"], json!(["image"]));
        assert_eq!(spec["properties"]["image"]["minLength"], 1);
        assert_eq!(spec["properties"]["replicas"]["default"], 1);
        assert_eq!(spec["properties"]["replicas"]["minimum"].as_f64(), Some(0.0));
        assert_eq!(schema["x-kubernetes-validations"][0]["rule"], "self.metadata.name.size() <= 63");
    }
}
