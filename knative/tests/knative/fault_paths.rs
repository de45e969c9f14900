//! The paths of faults in a list whose items flatten a `Destination`, as the steps of Knative's Sequence do.

use reknit_apis::kind;
use reknit_knative::Destination;
use reknit_webhook::{TestRequest, Webhook};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Relay", namespaced)]
struct RelaySpec {
    steps: Vec<Step>,
}

#[derive(Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
struct Step {
    #[serde(flatten)]
    destination: Destination,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay: Option<String>,
}

kind!(Relay {});

/// Returns the message and the fields of the causes with which a Relay of these steps is refused.
async fn refusal(steps: Value) -> (String, Vec<String>) {
    let webhook = Webhook::new("demo.reknit.dev").defaulting::<Relay>();
    let metadata = json!({"name": "x", "namespace": "default"});
    let relay = json!({
        "apiVersion": "tests.reknit.dev/v1", "kind": "Relay", "metadata": metadata, "spec": {"steps": steps},
    });
    let refused = webhook.admit(TestRequest::create(relay)).await.unwrap_err();
    let fields = refused.causes().iter().map(|cause| cause.field.to_string()).collect();
    (refused.to_string().replace("mutation failed: cannot decode incoming new object: ", ""), fields)
}

#[tokio::test]
async fn a_missing_field_of_a_destination_in_a_list_is_named_by_its_whole_path() {
    let (message, fields) = refusal(json!([{"ref": {"apiVersion": "v1", "name": "web"}}])).await;
    assert_eq!(message, "missing field(s): spec.steps[0].ref.kind");
    assert_eq!(fields, ["spec.steps[0].ref.kind"]);
}

#[tokio::test]
async fn a_field_of_the_wrong_type_in_a_destination_in_a_list_is_named_by_its_whole_path() {
    let valid = json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "web"}});
    let invalid = json!({"ref": {"apiVersion": "v1", "kind": 1, "name": "web"}});
    let (message, fields) = refusal(json!([valid, invalid])).await;
    assert_eq!(message, "spec.steps[1].ref.kind: invalid type: integer `1`, expected a string");
    assert_eq!(fields, ["spec.steps[1].ref.kind"]);
    let (message, _) = refusal(json!([valid, {"uri": 1}])).await;
    assert_eq!(message, "spec.steps[1].uri: invalid type: integer `1`, expected a string");
}

#[tokio::test]
async fn an_unknown_field_of_a_destination_in_a_list_is_named_by_its_whole_path() {
    let misspelt = json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "web", "nmae": "web"}});
    let (message, _) = refusal(json!([misspelt])).await;
    assert_eq!(message, "unknown field \"spec.steps[0].ref.nmae\"");
}
