//! Definitions of Kinds with types that need more than JSON Schema's simple forms, on a real API server.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::{
    api::core::v1::PodTemplateSpec,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{Condition, MicroTime, Time},
        runtime::RawExtension,
        util::intstr::IntOrString,
    },
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
};
use reknit_apis::{drop_descriptions, structural};
use reknit_testing::ControlPlane;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Zoo", namespaced, status = "ZooStatus")]
#[schemars(transform = structural)]
#[serde(rename_all = "camelCase")]
struct ZooSpec {
    mixed: Option<Mixed>,
    tagged: Option<Tagged>,
    adjacent: Option<Adjacent>,
    external: Option<External>,
    port: Option<Port>,
    source: Option<Source>,
    colour: Option<Colour>,
    described: Option<Described>,
    value: Option<Value>,
    values: Option<serde_json::Map<String, Value>>,
    flattened: Option<Flattened>,
    extended: Option<Extended>,
    nested: Option<Option<i32>>,
    mixed_list: Option<Vec<Mixed>>,
    tagged_by_name: Option<HashMap<String, Tagged>>,
    by_number: Option<BTreeMap<u16, String>>,
    by_colour: Option<BTreeMap<Colour, i32>>,
    pair: Option<(u32, String)>,
    triple: Option<[u8; 3]>,
    letter: Option<char>,
    letters: Option<BTreeSet<char>>,
    big: Option<u64>,
    small: Option<i8>,
    nothing: Option<()>,
    marker: Option<Marker>,
    tree: Option<Tree>,
    strict: Option<Strict>,
    #[serde(default)]
    defaults: Defaults,
    raw: Option<RawExtension>,
    quantity: Option<Quantity>,
    target: Option<IntOrString>,
    time: Option<Time>,
    micro_time: Option<MicroTime>,
    duration: Option<std::time::Duration>,
    #[schemars(transform = drop_descriptions)]
    template: Option<PodTemplateSpec>,
    outcome: Option<Result<i32, String>>,
    nested_options: Option<Vec<Option<Colour>>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(transform = structural)]
struct ZooStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
    phase: Option<Phase>,
}

macro_rules! types {
    ($($(#[$attribute:meta])* $kind:ident $name:ident $body:tt)*) => {
        $(
            #[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
            $(#[$attribute])*
            $kind $name $body
        )*
    };
}

types! {
    enum Phase { Ready, Failed { reason: String } }

    enum Mixed { Off, Idle, On { watts: i32 }, Level(i32) }

    #[serde(tag = "type")]
    enum Tagged {
        /// From a battery.
        Battery { hours: u32, name: String },
        /// From a socket.
        Mains { volts: u32, name: Option<i32> },
        Nothing,
    }

    #[serde(tag = "t", content = "c")]
    enum Adjacent { None, Number(i32), Struct { a: String } }

    enum External {
        /// A circle.
        Circle { radius: u32 },
        /// A square.
        Square(u32),
    }

    #[serde(untagged)]
    enum Port { Number(u16), Name(String) }

    #[serde(untagged)]
    enum Source { Image { image: String }, Chart { chart: String, version: Option<String> } }

    #[derive(Eq, PartialOrd, Ord)]
    enum Colour { Red, Green }

    enum Described {
        /// Always.
        Steady,
        /// At times.
        Blinking,
    }

    struct Flattened { name: String, #[serde(flatten)] rest: BTreeMap<String, String> }

    struct Extended { name: String, #[serde(flatten)] external: External, #[serde(flatten)] size: Option<Size> }

    struct Size { width: i32 }

    struct Marker {}

    struct Tree { name: String, #[serde(default)] children: Vec<Tree> }

    #[serde(deny_unknown_fields)]
    struct Strict { a: i32, b: Option<Size> }
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(default)]
struct Defaults {
    watts: u32,
    colour: Option<Colour>,
    mixed: Mixed,
    tagged: Tagged,
}

impl Default for Defaults {
    fn default() -> Self {
        Self { watts: 40, colour: None, mixed: Mixed::Off, tagged: Tagged::Mains { volts: 230, name: None } }
    }
}

/// Values of the spec, each by itself, as the API server has to store it.
fn valid() -> Vec<Value> {
    vec![
        json!({"mixed": "Off"}),
        json!({"mixed": {"On": {"watts": 1}}}),
        json!({"mixed": {"Level": 1}}),
        json!({"tagged": {"type": "Battery", "hours": 1, "name": "a"}}),
        json!({"tagged": {"type": "Mains", "volts": 1, "name": 1}}),
        json!({"tagged": {"type": "Nothing"}}),
        json!({"adjacent": {"t": "None"}}),
        json!({"adjacent": {"t": "Number", "c": 1}}),
        json!({"adjacent": {"t": "Struct", "c": {"a": "b"}}}),
        json!({"external": {"Circle": {"radius": 1}}}),
        json!({"external": {"Square": 1}}),
        json!({"port": 80}),
        json!({"port": "http"}),
        json!({"source": {"image": "a"}}),
        json!({"source": {"chart": "a", "version": "1"}}),
        json!({"colour": "Red", "described": "Steady"}),
        json!({"colour": null, "described": null, "tagged": null, "port": null, "value": null, "mixed": null}),
        json!({"value": 1}),
        json!({"value": {"a": [{"b": "c"}]}}),
        json!({"values": {"a": {"b": {"c": 1}}}}),
        json!({"flattened": {"name": "a", "other": "b"}}),
        json!({"extended": {"name": "a", "Square": 1, "width": 1}}),
        json!({"nested": 1}),
        json!({"mixedList": ["Off", {"On": {"watts": 1}}]}),
        json!({"taggedByName": {"a": {"type": "Nothing"}}}),
        json!({"byNumber": {"1": "a"}, "byColour": {"Red": 1}}),
        json!({"pair": [1, "a"], "triple": [1, 2, 3], "letter": "a", "letters": ["a", "b"]}),
        json!({"big": i64::MAX, "small": -128}),
        json!({"nothing": null, "marker": {}}),
        json!({"tree": {"name": "a", "children": [{"name": "b", "children": [{"name": "c", "children": []}]}]}}),
        json!({"strict": {"a": 1, "b": {"width": 1}}}),
        json!({"raw": {"apiVersion": "v1", "kind": "X", "spec": {"a": 1}}}),
        json!({"quantity": "1Gi", "target": "50%"}),
        json!({"quantity": 1, "target": 1}),
        json!({"time": "2026-01-02T03:04:05Z", "microTime": "2026-01-02T03:04:05.000001Z"}),
        json!({"duration": {"secs": 1, "nanos": 2}}),
        json!({"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}),
        json!({"outcome": {"Ok": 1}, "nestedOptions": ["Red", null]}),
    ]
}

/// Values of the spec that the schema refuses.
fn invalid() -> Vec<Value> {
    vec![
        json!({"tagged": {"type": "Battery", "hours": 1}}),
        json!({"tagged": {"type": "Other"}}),
        json!({"tagged": {"hours": 1}}),
        json!({"external": {"Circle": {"radius": 1}, "Square": 1}}),
        json!({"external": {}}),
        json!({"external": {"Circle": {}}}),
        json!({"source": {"version": "1"}}),
        json!({"port": true}),
        json!({"colour": "Blue"}),
        json!({"small": 128}),
        json!({"big": -1}),
        json!({"triple": [1, 2]}),
        json!({"letter": "ab"}),
        json!({"byNumber": {"1": 2}}),
        json!({"defaults": {"watts": "a"}}),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_type_has_a_definition_that_the_api_server_accepts() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<Zoo>().await.unwrap();
    let namespace = plane.namespace("zoos").await.unwrap();
    let resource = ApiResource::erase::<Zoo>(&());
    let zoos: Api<DynamicObject> = Api::namespaced_with(plane.client().unwrap(), &namespace, &resource);
    let create = async |name: &str, spec: &Value| {
        let zoo = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
        zoos.create(&PostParams::default(), &zoo).await
    };
    let mut failures = Vec::new();
    for (index, spec) in valid().iter().enumerate() {
        match create(&format!("valid-{index}"), spec).await {
            Ok(mut zoo) => {
                let stored = zoo.data["spec"].as_object_mut().unwrap();
                let defaults = stored.remove("defaults");
                if defaults
                    != Some(json!({"watts": 40, "mixed": "Off", "tagged": {"type": "Mains", "volts": 230}}))
                {
                    failures.push(format!("the defaults of {spec}: {defaults:?}"));
                }
                if zoo.data["spec"] != *spec {
                    failures.push(format!("{spec} is stored as {}", zoo.data["spec"]));
                }
                if let Err(error) = zoo.try_parse::<Zoo>() {
                    failures.push(format!("{spec} cannot be decoded: {error}"));
                }
            }
            Err(error) => failures.push(format!("{spec}: {error}")),
        }
    }
    for (index, spec) in invalid().iter().enumerate() {
        if create(&format!("invalid-{index}"), spec).await.is_ok() {
            failures.push(format!("{spec} is accepted"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Reef", namespaced)]
#[schemars(transform = structural)]
#[serde(rename_all = "camelCase")]
struct ReefSpec {
    nested: Option<Nested>,
    clash: Option<Clash>,
    inner: Option<Inner>,
    denied: Option<Denied>,
    other: Option<WithOther>,
    untagged_variant: Option<UntaggedVariant>,
    empty: Option<EmptyOr>,
    flat: Option<Flat>,
    address: Option<std::net::IpAddr>,
    v4: Option<std::net::Ipv4Addr>,
    positive: Option<std::num::NonZeroU16>,
    range: Option<std::ops::Range<u32>>,
    text: Option<std::borrow::Cow<'static, str>>,
    number: Option<serde_json::Number>,
    wrapped: Option<Wrapped>,
    defaulted: Option<Defaulted>,
    defaulted_by_form: Option<DefaultedByForm>,
    lists: Option<Vec<Vec<Clash>>>,
    matrix: Option<BTreeMap<String, BTreeMap<String, Value>>>,
    either: Option<Either>,
    maps: Option<Vec<BTreeMap<String, Option<Nested>>>>,
    huge: Option<u128>,
    ratio: Option<f32>,
    unit: Option<Unit>,
}

types! {
    #[serde(tag = "type")]
    enum Nested { Leaf { size: i32 }, Inner(Box<Leaf>), Choice(External) }

    struct Leaf { size: i32, colour: Option<Colour> }

    #[serde(tag = "kind", rename_all = "camelCase")]
    enum Clash {
        First { value: i32 },
        Second { value: String },
        Third { value: Vec<i32>, extra: bool },
    }

    #[serde(tag = "type")]
    enum Inner { A(InnerChoice), B { only: bool } }

    #[serde(tag = "sort")]
    enum InnerChoice { X { x: i32 }, Y { y: i32 } }

    #[serde(tag = "type", deny_unknown_fields)]
    enum Denied { A { a: i32 }, B { b: i32 } }

    enum WithOther { Known, #[serde(other)] Unknown }

    enum UntaggedVariant { Named, #[serde(untagged)] Free { text: String } }

    #[serde(untagged)]
    enum EmptyOr { Nothing, Text(String) }

    struct Flat { #[serde(flatten)] one: Nested, #[serde(flatten)] two: Size, #[serde(flatten)] rest: BTreeMap<String, Value> }

    #[serde(tag = "type", deny_unknown_fields)]
    enum Defaulted { A { #[serde(default = "ten")] size: i32 }, B { width: i32 } }

    #[serde(untagged)]
    enum DefaultedByForm { A { image: String, #[serde(default = "ten")] size: i32 }, B { chart: String } }

    #[serde(untagged)]
    enum Either { List(Vec<String>), One(String) }

}

fn ten() -> i32 {
    10
}

#[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
struct Wrapped(i32);

#[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
struct Unit;

#[tokio::test(flavor = "multi_thread")]
async fn nested_and_conflicting_alternatives_have_a_definition_too() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<Reef>().await.unwrap();
    reknit_apis::definition_of::<Reef>().unwrap();
    let namespace = plane.namespace("reefs").await.unwrap();
    let resource = ApiResource::erase::<Reef>(&());
    let reefs: Api<DynamicObject> = Api::namespaced_with(plane.client().unwrap(), &namespace, &resource);
    let valid = [
        json!({"nested": {"type": "Leaf", "size": 1}}),
        json!({"nested": {"type": "Inner", "size": 1, "colour": "Red"}}),
        json!({"nested": {"type": "Choice", "Square": 1}}),
        json!({"clash": {"kind": "first", "value": 1}}),
        json!({"clash": {"kind": "second", "value": "a"}}),
        json!({"clash": {"kind": "third", "value": [1], "extra": true}}),
        json!({"inner": {"type": "A", "sort": "X", "x": 1}}),
        json!({"inner": {"type": "B", "only": true}}),
        json!({"denied": {"type": "A", "a": 1}}),
        json!({"defaulted": {"type": "A"}}),
        json!({"defaulted": {"type": "B", "width": 1}}),
        json!({"defaultedByForm": {"chart": "a"}}),
        json!({"other": "Known"}),
        json!({"untaggedVariant": "Named"}),
        json!({"untaggedVariant": {"text": "a"}}),
        json!({"empty": "a"}),
        json!({"flat": {"type": "Leaf", "size": 1, "width": 2, "free": {"a": 1}}}),
        json!({"address": "127.0.0.1", "v4": "127.0.0.1", "positive": 1, "range": {"start": 1, "end": 2}}),
        json!({"text": "a", "number": 1, "wrapped": 1, "huge": 1, "ratio": 0.5, "unit": null}),
        json!({"lists": [[{"kind": "first", "value": 1}]], "matrix": {"a": {"b": {"c": 1}}}}),
        json!({"either": ["a"]}),
        json!({"either": "a"}),
        json!({"maps": [{"a": {"type": "Leaf", "size": 1}, "b": null}]}),
    ];
    let mut failures = Vec::new();
    for (index, spec) in valid.iter().enumerate() {
        let reef = DynamicObject::new(&format!("valid-{index}"), &resource).data(json!({"spec": spec}));
        match reefs.create(&PostParams::default(), &reef).await {
            Ok(reef) if reef.data["spec"] != *spec => {
                failures.push(format!("{spec} is stored as {}", reef.data))
            }
            Ok(reef) => {
                failures.extend(reef.try_parse::<Reef>().err().map(|error| format!("{spec}: {error}")))
            }
            Err(error) => failures.push(format!("{spec}: {error}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_definition_of_kube_alone_is_accepted_too() {
    use kube::CustomResourceExt;
    let plane = ControlPlane::shared().await.unwrap();
    let mut definition = reknit_apis::kubernetes_schema(Zoo::crd());
    reknit_apis::check_definition(&definition).unwrap();
    let names = &mut definition.spec.names;
    (names.kind, names.plural, names.singular) = ("Ark".into(), "arks".into(), Some("ark".into()));
    definition.metadata.name = Some("arks.tests.reknit.dev".into());
    plane.install_crd(definition).await.unwrap();
}
