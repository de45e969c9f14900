//! Structural schemas of types that JSON Schema describes by alternatives.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity, runtime::RawExtension, util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use reknit_apis::{check_definition, definition_of, kubernetes_schema, structural};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Returns the structural schema of a type, as that of a field.
fn schema_of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::openapi3();
    (settings.inline_subschemas, settings.meta_schema) = (true, None);
    let field = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    let mut schema = json_schema!({"type": "object", "required": ["field"], "properties": {"field": field}});
    structural(&mut schema);
    let once = schema.clone();
    structural(&mut schema);
    assert_eq!(schema, once, "a second rewrite changes the schema");
    schema.as_value()["properties"]["field"].clone()
}

macro_rules! type_of {
    ($($item:tt)*) => {
        #[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
        #[allow(dead_code, reason = "only its schema is read")]
        $($item)*
    };
}

type_of! {
    enum Colour {
        Red,
        Green,
    }
}

type_of! {
    /// How it shines.
    enum Described {
        /// Always.
        Steady,
        /// At times.
        Blinking,
    }
}

#[test]
fn an_enum_of_units_lists_its_values_also_if_it_is_optional() {
    let colour = json!({"type": "string", "enum": ["Red", "Green"]});
    assert_eq!(schema_of::<Colour>(), colour);
    let optional = json!({"type": "string", "allOf": [{"enum": ["Red", "Green"]}], "nullable": true});
    assert_eq!(schema_of::<Option<Colour>>(), optional);
    assert_eq!(schema_of::<Option<Option<Colour>>>(), optional);
    assert_eq!(schema_of::<Vec<Colour>>(), json!({"type": "array", "items": colour}));
    let map = json!({"type": "object", "additionalProperties": colour});
    assert_eq!(schema_of::<HashMap<String, Colour>>(), map);
    assert_eq!(
        schema_of::<Described>(),
        json!({"description": "How it shines.", "type": "string", "enum": ["Steady", "Blinking"]})
    );
}

#[test]
fn an_externally_tagged_enum_has_a_field_for_each_variant() {
    type_of! {
        enum Shape {
            /// A circle.
            Circle { radius: i32 },
            Square(i32),
        }
    }
    assert_eq!(
        schema_of::<Shape>(),
        json!({
            "type": "object",
            "properties": {
                "Circle": {
                    "description": "A circle.", "type": "object", "required": ["radius"],
                    "properties": {"radius": {"type": "integer", "format": "int32"}},
                },
                "Square": {"type": "integer", "format": "int32"},
            },
            "oneOf": [{"required": ["Circle"]}, {"required": ["Square"]}],
        })
    );
    let optional = schema_of::<Option<Shape>>();
    assert_eq!((&optional["nullable"], &optional["oneOf"]), (&json!(true), &schema_of::<Shape>()["oneOf"]));
}

#[test]
fn an_enum_with_units_beside_data_allows_its_units_and_objects_with_a_variant() {
    type_of! {
        enum Mixed {
            Off,
            On { watts: i32 },
            Dimmed(u32),
        }
    }
    let mixed = json!({"x-kubernetes-preserve-unknown-fields": true,
        "anyOf": [{"enum": ["Off"]}, {"required": ["On"]}, {"required": ["Dimmed"]}]});
    assert_eq!(schema_of::<Mixed>(), mixed);
    let optional = schema_of::<Option<Mixed>>();
    assert_eq!((&optional["nullable"], &optional["anyOf"]), (&json!(true), &mixed["anyOf"]));
}

#[derive(Serialize, Deserialize, Clone, Debug, KubeSchema)]
#[x_kube(validation = Rule::new("self.min <= self.max"))]
struct Range {
    min: i32,
    max: i32,
}

#[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[serde(tag = "type")]
enum Limit {
    Range(Range),
    Fixed { watts: i32 },
}

#[test]
fn a_definition_that_would_lose_the_rule_of_a_variant_is_refused() {
    macro_rules! refusal_of {
        ($limit:ty) => {{
            #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
            #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
            #[schemars(transform = structural)]
            struct LampSpec {
                limit: $limit,
            }
            let refusal = definition_of::<Lamp>().unwrap_err();
            let faults = refusal.faults().join("\n");
            assert!(faults.contains("v1: spec.limit"), "{faults}");
            assert!(
                faults.contains("set the rule of a variant on the type that contains the enum"),
                "{faults}"
            );
        }};
    }
    #[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[serde(untagged)]
    enum Untagged {
        Range(Range),
        Watts { watts: i32 },
        Name(String),
    }
    refusal_of!(Limit);
    refusal_of!(Untagged);
    refusal_of!(Option<Limit>);
    refusal_of!(Vec<Limit>);
}

#[test]
fn the_rules_of_a_struct_that_contains_no_enum_stay() {
    assert_eq!(schema_of::<Range>()["x-kubernetes-validations"][0]["rule"], "self.min <= self.max");
    let optional = schema_of::<Option<Range>>();
    assert_eq!(optional["x-kubernetes-validations"][0]["rule"], "self.min <= self.max", "{optional}");
}

#[test]
fn a_tagged_enum_has_all_fields_and_restricts_them_by_the_tag() {
    type_of! {
        #[serde(tag = "type")]
        enum Power {
            /// From a battery.
            Battery { hours: i32, name: String },
            /// From a socket.
            Mains { volts: i64, name: Option<String> },
        }
    }
    assert_eq!(
        schema_of::<Power>(),
        json!({
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["Battery", "Mains"]},
                "hours": {"type": "integer", "format": "int32"},
                "volts": {"type": "integer", "format": "int64"},
                "name": {"type": "string", "nullable": true},
            },
            "required": ["type"],
            "oneOf": [
                {"allOf": [{"properties": {"type": {"enum": ["Battery"]}}, "required": ["hours", "name"]}]},
                {"allOf": [{"properties": {"type": {"enum": ["Mains"]}}, "required": ["volts"]}]},
            ],
        })
    );
    type_of! {
        #[serde(tag = "t", content = "c")]
        enum Adjacent {
            None,
            Number(i32),
            Struct { a: String },
        }
    }
    let adjacent = schema_of::<Adjacent>();
    assert_eq!(
        adjacent["properties"]["c"],
        json!({"x-kubernetes-preserve-unknown-fields": true, "nullable": true})
    );
    assert_eq!(adjacent["properties"]["t"]["enum"], json!(["None", "Number", "Struct"]));
}

#[test]
fn untagged_alternatives_become_one_type() {
    type_of! {
        #[serde(untagged)]
        enum Port {
            Number(i32),
            Name(String),
        }
    }
    assert_eq!(schema_of::<Port>(), json!({"x-kubernetes-int-or-string": true}));
    assert_eq!(
        schema_of::<Vec<Port>>(),
        json!({"type": "array", "items": {"x-kubernetes-int-or-string": true}})
    );
    assert_eq!(schema_of::<Option<Port>>(), json!({"x-kubernetes-int-or-string": true, "nullable": true}));
    type_of! {
        #[serde(untagged)]
        enum Source {
            Image { image: String },
            Chart { chart: String, version: Option<String> },
        }
    }
    let source = schema_of::<Source>();
    assert_eq!(source["anyOf"], json!([{"required": ["image"]}, {"required": ["chart"]}]));
    assert_eq!(source["properties"]["version"], json!({"type": "string", "nullable": true}));
    type_of! {
        #[serde(untagged)]
        enum Level {
            Ratio(f64),
            Name(String),
        }
    }
    assert_eq!(schema_of::<Level>(), json!({"x-kubernetes-preserve-unknown-fields": true}));
}

#[test]
fn values_of_any_form_are_preserved() {
    let any = json!({"x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(schema_of::<Value>(), any);
    assert_eq!(schema_of::<Vec<Value>>(), json!({"type": "array", "items": any}));
    assert_eq!(
        schema_of::<BTreeMap<String, Value>>(),
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
    );
    let extension = schema_of::<RawExtension>();
    assert_eq!(extension["x-kubernetes-preserve-unknown-fields"], true);
    assert_eq!(schema_of::<IntOrString>()["x-kubernetes-int-or-string"], true);
    assert_eq!(schema_of::<Option<Quantity>>()["x-kubernetes-int-or-string"], true);
}

#[test]
fn a_flattened_map_keeps_unknown_fields_and_a_map_alone_stays_one() {
    type_of! {
        struct Flattened {
            name: String,
            #[serde(flatten)]
            rest: BTreeMap<String, String>,
        }
    }
    assert_eq!(
        schema_of::<Flattened>(),
        json!({
            "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
            "x-kubernetes-preserve-unknown-fields": true,
        })
    );
    type_of! {
        struct OnlyMap {
            #[serde(flatten)]
            rest: BTreeMap<String, String>,
        }
    }
    let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    assert_eq!(schema_of::<OnlyMap>(), map);
    assert_eq!(schema_of::<BTreeMap<u16, String>>(), map);
}

#[test]
fn flattened_parts_are_fields_of_the_object() {
    type_of! {
        struct Flattened {
            name: String,
            #[serde(flatten)]
            shape: Shape,
            #[serde(flatten)]
            size: Option<Size>,
        }
    }
    type_of! {
        enum Shape {
            Circle(i32),
            Square(i32),
        }
    }
    type_of! {
        struct Size {
            width: i32,
        }
    }
    let flattened = schema_of::<Flattened>();
    let names: Vec<_> = flattened["properties"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["Circle", "Square", "name", "width"]);
    assert_eq!((&flattened["type"], &flattened["required"]), (&json!("object"), &json!(["name"])));
    assert_eq!(flattened["oneOf"], json!([{"required": ["Circle"]}, {"required": ["Square"]}]));
}

#[test]
fn tuples_sets_unit_types_and_recursive_types_have_schemas() {
    let pair = schema_of::<(i32, String)>();
    assert_eq!((&pair["minItems"], &pair["maxItems"]), (&json!(2), &json!(2)));
    assert_eq!(pair["items"], json!({"x-kubernetes-int-or-string": true}));
    assert_eq!(schema_of::<[i32; 3]>()["maxItems"], 3);
    assert_eq!(schema_of::<std::collections::BTreeSet<String>>()["uniqueItems"], Value::Null);
    assert_eq!(schema_of::<()>(), json!({"type": "object", "nullable": true, "maxProperties": 0}));
    type_of! {
        struct Tree {
            name: String,
            children: Vec<Tree>,
        }
    }
    let inner = &schema_of::<Tree>()["properties"]["children"];
    assert_eq!(inner["items"]["x-kubernetes-preserve-unknown-fields"], true);
    type_of! {
        #[serde(deny_unknown_fields)]
        struct Strict {
            #[schemars(extend("exclusiveMinimum" = 0))]
            a: f64,
            #[serde(default)]
            b: Option<i32>,
        }
    }
    type_of! {
        struct Bounded {
            #[schemars(extend("minimum" = 10, "exclusiveMinimum" = 5, "maximum" = 20, "exclusiveMaximum" = 20))]
            a: f64,
        }
    }
    let bounded = schema_of::<Bounded>();
    let a = &bounded["properties"]["a"];
    assert_eq!(
        (&a["minimum"], &a["exclusiveMinimum"]),
        (&json!(10), &Value::Null),
        "the tighter bound stays"
    );
    assert_eq!((&a["maximum"], &a["exclusiveMaximum"]), (&json!(20), &json!(true)));
    let strict = schema_of::<Strict>();
    assert_eq!(strict["additionalProperties"], Value::Null);
    assert_eq!(strict["properties"]["a"]["exclusiveMinimum"], true);
    assert_eq!(strict["properties"]["b"], json!({"type": "integer", "format": "int32", "nullable": true}));
}

#[test]
fn each_quantity_of_a_definition_has_its_pattern() {
    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Plain", namespaced)]
    struct PlainSpec {
        /// The processors.
        cpu: Quantity,
        memory: Option<Quantity>,
        #[schemars(extend("pattern" = "^1$"))]
        own: Quantity,
        port: IntOrString,
        container: k8s_openapi::api::core::v1::ResourceRequirements,
    }
    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Rewritten", namespaced)]
    #[schemars(transform = structural)]
    struct RewrittenSpec {
        #[serde(flatten)]
        plain: PlainSpec,
    }
    for definition in [definition_of::<Plain>(), definition_of::<Rewritten>()] {
        let definition = serde_json::to_value(definition.unwrap()).unwrap();
        let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let fields = &spec["properties"];
        let pattern = fields["cpu"]["pattern"].as_str().unwrap();
        assert!(pattern.starts_with(r"^(\+|-)?(([0-9]+"), "{pattern}");
        let quantity = json!({"pattern": pattern, "x-kubernetes-int-or-string": true});
        let with = |field: &str, value: Value| {
            let mut schema = quantity.clone();
            schema[field] = value;
            schema
        };
        assert_eq!(fields["cpu"], with("description", json!("The processors.")));
        assert_eq!(fields["memory"], with("nullable", json!(true)));
        assert_eq!(fields["own"], with("pattern", json!("^1$")));
        assert_eq!(fields["port"]["pattern"], Value::Null);
        assert_eq!(fields["container"]["properties"]["limits"]["additionalProperties"], quantity);
    }
}

#[test]
fn a_definition_whose_schema_kube_cannot_generate_names_the_field_and_the_way_out() {
    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Bare", namespaced)]
    struct BareSpec {
        lights: Vec<Light>,
    }
    type_of! {
        struct Light {
            mode: Mode,
        }
    }
    type_of! {
        enum Mode {
            Off,
            On { watts: i32 },
        }
    }
    let refusal = definition_of::<Bare>().unwrap_err();
    assert_eq!(refusal.faults().len(), 1);
    let message = refusal.to_string();
    let expected = "the API server would refuse CustomResourceDefinition bares.demo.reknit.dev\n  spec.lights[].mode: its \
                    alternatives have different types: add `#[schemars(transform = reknit::apis::structural)]`";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn a_definition_that_breaks_the_rules_is_refused_with_the_paths_of_its_fields() {
    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Loose", namespaced)]
    struct LooseSpec {
        value: Value,
        name: String,
        #[serde(flatten)]
        rest: BTreeMap<String, String>,
    }
    use kube::CustomResourceExt;
    let faults = check_definition(&Loose::crd()).unwrap_err();
    let faults = faults.faults().join("\n");
    assert!(faults.contains("v1: spec.value: it has no type"), "{faults}");
    assert!(faults.contains("v1: spec: properties and additionalProperties exclude each other"), "{faults}");
    assert_eq!(check_definition(&kubernetes_schema(Loose::crd())), Ok(()));
    assert_eq!(kubernetes_schema(Loose::crd()), definition_of::<Loose>().unwrap());
}

/// The API server accepts such a definition, and then reports `NamesAccepted: False`.
#[test]
fn a_short_name_that_is_the_plural_or_the_singular_and_one_with_other_characters_are_refused() {
    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(
        group = "demo.reknit.dev",
        version = "v1",
        kind = "Lamp",
        namespaced,
        shortname = "lp",
        shortname = "lamp",
        shortname = "lamps",
        shortname = "Lm",
        shortname = "1l",
        category = "all",
        category = "a_b"
    )]
    struct LampSpec {}
    let faults = definition_of::<Lamp>().unwrap_err();
    let expected = [
        "the short name \"lamp\" is the plural or the singular of the Kind: leave it out",
        "the short name \"lamps\" is the plural or the singular of the Kind: leave it out",
        "the short name \"Lm\" has to consist of lower case letters, digits and '-', and to begin with a letter",
        "the short name \"1l\" has to consist of lower case letters, digits and '-', and to begin with a letter",
        "the category \"a_b\" has to consist of lower case letters, digits and '-', and to begin with a letter",
    ];
    assert_eq!(faults.faults(), expected);
}
