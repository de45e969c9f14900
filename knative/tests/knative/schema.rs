//! Tests that the schemas of the types in CustomResourceDefinitions are structural, as the API server requires.

use kube::{CustomResource, CustomResourceExt};
use reknit_apis::{DuckStatus, KReference, Reference};
use reknit_knative::{
    AddressStatus, Addressable, BindingSpec, ChannelableSpec, ChannelableStatus, DeliveryStatus, Destination,
    SourceSpec, SourceStatus, Url,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(
    group = "demo.reknit.dev",
    version = "v1",
    kind = "Everything",
    namespaced,
    status = "EverythingStatus"
)]
struct EverythingSpec {
    reference: KReference,
    tracked: Vec<Reference>,
    sink: Option<Destination>,
    url: Option<Url>,
    source: SourceSpec,
    binding: BindingSpec,
    channel: ChannelableSpec,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct EverythingStatus {
    #[serde(flatten)]
    duck: DuckStatus,
    #[serde(flatten)]
    addresses: AddressStatus,
    further: Option<Addressable>,
    source: SourceStatus,
    channel: ChannelableStatus,
    delivery: DeliveryStatus,
}

/// The schema of a Kind that contains all these types.
fn schema() -> serde_json::Result<Value> {
    let crd = serde_json::to_value(Everything::crd())?;
    Ok(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
}

/// Calls `visitor` with each node of the schema and its path.
fn visit(node: &Value, path: &str, visitor: &mut impl FnMut(&Value, &str)) {
    visitor(node, path);
    for (name, property) in node["properties"].as_object().into_iter().flatten() {
        visit(property, &format!("{path}.{name}"), visitor);
    }
    for inner in ["items", "additionalProperties"] {
        if node[inner].is_object() {
            visit(&node[inner], &format!("{path}.{inner}"), visitor);
        }
    }
}

#[test]
fn every_node_has_a_type_and_none_is_a_reference_or_an_alternative() {
    let mut node_count = 0;
    visit(&schema().unwrap(), "", &mut |node, path| {
        node_count += 1;
        assert!(node["type"].is_string(), "{path} has no type: {node}");
        for forbidden in ["$ref", "$defs", "definitions", "oneOf", "anyOf", "allOf", "not", "const"] {
            assert!(node.get(forbidden).is_none(), "{path} has {forbidden}: {node}");
        }
    });
    println!("{node_count} nodes");
    assert!(node_count > 40, "only {node_count} nodes were visited");
}

#[test]
fn fields_have_knatives_names() {
    let schema = schema().unwrap();
    for path in [
        "/spec/properties/reference/properties/apiVersion",
        "/spec/properties/tracked/items/properties/selector/properties/matchLabels",
        "/spec/properties/sink/properties/ref/properties/apiVersion",
        "/spec/properties/sink/properties/ref/properties/group",
        "/spec/properties/sink/properties/CACerts",
        "/status/properties/observedGeneration",
        "/status/properties/annotations/additionalProperties",
        "/status/properties/conditions/items/properties/lastTransitionTime",
        "/status/properties/address/properties/CACerts",
        "/spec/properties/source/properties/ceOverrides/properties/extensions",
        "/spec/properties/binding/properties/subject/properties/selector",
        "/spec/properties/channel/properties/subscribers/items/properties/subscriberCACerts",
        "/spec/properties/channel/properties/delivery/properties/backoffDelay",
        "/status/properties/source/properties/sinkUri",
        "/status/properties/source/properties/sinkCACerts",
        "/status/properties/source/properties/auth/properties/serviceAccountNames",
        "/status/properties/source/properties/ceAttributes/items/properties/source",
        "/status/properties/channel/properties/subscribers/items/properties/ready",
        "/status/properties/channel/properties/deadLetterChannel",
        "/status/properties/delivery/properties/deadLetterSinkUri",
        "/status/properties/addresses/items/properties/audience",
    ] {
        assert!(schema.pointer(&format!("/properties{path}")).is_some(), "no {path}");
    }
    assert_eq!(
        schema.pointer("/properties/status/properties/conditions/items/required").unwrap(),
        &serde_json::json!(["status", "type"])
    );
}

#[test]
fn conditions_are_a_map_by_type() {
    let conditions = schema().unwrap()["properties"]["status"]["properties"]["conditions"].clone();
    assert_eq!(conditions["x-kubernetes-list-type"], "map");
    assert_eq!(conditions["x-kubernetes-list-map-keys"], serde_json::json!(["type"]));
}

#[test]
fn descriptions_contain_no_rustdoc_markup() {
    visit(&schema().unwrap(), "", &mut |node, path| {
        let description = node["description"].as_str().unwrap_or_default();
        for markup in ["```", "](", "`]", "use reknit"] {
            assert!(!description.contains(markup), "{path}: {description}");
        }
    });
}

#[test]
fn a_destination_survives_a_round_trip() {
    let stored = serde_json::json!({
        "ref": {"apiVersion": "v1", "kind": "Service", "name": "web", "namespace": "default", "group": "g"},
        "uri": "/below", "CACerts": "pem", "audience": "me"
    });
    let destination: Destination = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(destination.reference.as_ref().unwrap().name, "web");
    assert_eq!(serde_json::to_value(destination).unwrap(), stored);
}
