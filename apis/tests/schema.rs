//! The schemas of CustomResourceDefinitions.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PodTemplateSpec, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{CustomResource, CustomResourceExt};
use reknit_apis::{definition_of, drop_descriptions, kubernetes_schema, structural};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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

/// A Kind with core types.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Pool", namespaced, status = "PoolStatus")]
struct PoolSpec {
    /// The template of the pods.
    #[schemars(transform = drop_descriptions)]
    template: PodTemplateSpec,
    service: ServiceSpec,
    ports: Vec<u16>,
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    conditions: Vec<Condition>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct PoolStatus {
    conditions: Vec<Condition>,
}

fn pool_schema() -> serde_json::Result<Value> {
    let crd = serde_json::to_value(kubernetes_schema(Pool::crd()))?;
    Ok(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone())
}

#[test]
fn integers_have_formats_that_kubernetes_knows() {
    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Numbers")]
    struct NumbersSpec {
        byte: u8,
        short: i16,
        count: Option<u32>,
        total: u64,
        offset: isize,
        ids: Vec<u32>,
    }
    let crd = serde_json::to_value(kubernetes_schema(Numbers::crd())).unwrap();
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let of = |node: &Value| (node["format"].clone(), node["minimum"].as_f64(), node["maximum"].as_f64());
    let expected = |format: &str, minimum, maximum| (Value::from(format), minimum, maximum);
    assert_eq!(of(&spec["byte"]), expected("int32", Some(0.0), Some(255.0)));
    assert_eq!(of(&spec["short"]), expected("int32", Some(-32768.0), Some(32767.0)));
    assert_eq!(of(&spec["count"]), expected("int64", Some(0.0), Some(4_294_967_295.0)));
    assert_eq!(of(&spec["ids"]["items"]), expected("int64", Some(0.0), Some(4_294_967_295.0)));
    assert_eq!(of(&spec["total"]), expected("int64", Some(0.0), None));
    assert_eq!(of(&spec["offset"]), expected("int64", None, None));
}

#[test]
fn lists_of_core_types_have_the_keys_that_they_have_in_kubernetes() {
    let schema = pool_schema().unwrap();
    let spec = &schema["spec"]["properties"];
    let pod = &spec["template"]["properties"]["spec"]["properties"];
    let container = &pod["containers"]["items"]["properties"];
    for (list, keys) in [
        (&pod["containers"], &["name"][..]),
        (&pod["volumes"], &["name"]),
        (&pod["imagePullSecrets"], &["name"]),
        (&container["env"], &["name"]),
        (&container["ports"], &["containerPort", "protocol"]),
        (&container["volumeMounts"], &["mountPath"]),
        (&spec["service"]["properties"]["ports"], &["port", "protocol"]),
        (&schema["status"]["properties"]["conditions"], &["type"]),
    ] {
        assert_eq!(list["x-kubernetes-list-type"], "map", "{list}");
        assert_eq!(list["x-kubernetes-list-map-keys"], serde_json::json!(keys));
    }
    assert_eq!(container["ports"]["items"]["properties"]["protocol"]["default"], "TCP");
    assert_eq!(spec["ports"].get("x-kubernetes-list-type"), None, "a list of the user's own");
    assert_eq!(spec["conditions"]["x-kubernetes-list-type"], "atomic", "a type that was set");
}

#[test]
fn a_field_keeps_its_own_description_and_drops_those_below() {
    let schema = pool_schema().unwrap();
    let template = &schema["spec"]["properties"]["template"];
    assert_eq!(template["description"], "The template of the pods.");
    visit(template, "", &mut |node, path| {
        assert!(path.is_empty() || node.get("description").is_none(), "{path}: {node}");
    });
    assert!(template["properties"]["metadata"]["properties"].is_object());
}

/// A Kind with an object whose fields are not known.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Template", namespaced)]
struct TemplateSpec {
    spec: serde_json::Map<String, Value>,
}

#[test]
fn fields_of_any_form_are_preserved_at_any_depth() {
    let crd = serde_json::to_value(kubernetes_schema(Template::crd())).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let expected = serde_json::json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(schema["properties"]["spec"]["properties"]["spec"], expected);
}

#[test]
fn a_status_requires_no_field_but_the_keys_of_its_lists_and_those_of_conditions() {
    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
    #[schemars(transform = structural)]
    struct LampSpec {
        watts: u32,
    }
    #[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
    struct Range {
        min: i32,
        max: i32,
    }
    #[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
    enum Shape {
        Circle { radius: i32 },
        Square { side: i32 },
    }
    #[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[serde(tag = "type")]
    enum Power {
        Battery { hours: i32 },
        Mains { volts: i32 },
    }
    #[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[schemars(transform = structural)]
    struct LampStatus {
        watts: u32,
        range: Range,
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["min"]))]
        ranges: Vec<Range>,
        named: BTreeMap<String, Range>,
        shape: Shape,
        power: Power,
        conditions: Vec<Condition>,
    }
    let definition = json!(definition_of::<Lamp>().unwrap());
    let fields = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(fields["spec"]["required"], json!(["watts"]));
    let status = &fields["status"];
    let (range, named) = (&status["properties"]["range"], &status["properties"]["named"]);
    for node in [status, range, &named["additionalProperties"]] {
        assert_eq!(node["required"], Value::Null, "{node}");
    }
    assert_eq!(status["properties"]["ranges"]["items"]["required"], json!(["min"]));
    let condition = &status["properties"]["conditions"]["items"]["required"];
    assert_eq!(condition, &json!(["lastTransitionTime", "message", "reason", "status", "type"]));
    let shapes = json!([{"required": ["Circle"]}, {"required": ["Square"]}]);
    assert_eq!(status["properties"]["shape"]["oneOf"], shapes);
    let tag = |name: &str| json!({"allOf": [{"properties": {"type": {"enum": [name]}}}]});
    assert_eq!(status["properties"]["power"]["oneOf"], json!([tag("Battery"), tag("Mains")]));
}

#[test]
fn a_default_of_an_f32_has_its_shortest_form() {
    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
    struct LampSpec {
        #[serde(default = "tenth")]
        #[schemars(range(max = 0.1))]
        ratio: f32,
        #[serde(default = "tenths")]
        ratios: BTreeMap<String, Vec<f32>>,
    }
    fn tenth() -> f32 {
        0.1
    }
    fn tenths() -> BTreeMap<String, Vec<f32>> {
        BTreeMap::from([("a".into(), vec![0.1])])
    }
    let definition = json!(definition_of::<Lamp>().unwrap());
    let fields =
        &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    assert_eq!(fields["ratio"]["default"].to_string(), "0.1");
    assert_eq!(fields["ratios"]["default"].to_string(), r#"{"a":[0.1]}"#);
}
