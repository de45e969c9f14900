use std::collections::BTreeMap;

use reknit_apis::kind;
use reknit_apis::{Operation, Request};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use super::*;

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
#[serde(rename_all = "camelCase")]
struct LampSpec {
    room: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bulbs: Vec<Bulb>,
    #[serde(flatten)]
    power: Power,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shade: Option<Shade>,
    #[serde(default)]
    tags: BTreeMap<String, Bulb>,
    #[serde(default)]
    extra: Option<Open>,
}

#[derive(Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
struct Bulb {
    watts: u32,
}

#[derive(Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
struct Power {
    #[serde(default)]
    source: Source,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Target>,
}

#[derive(Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
struct Target {
    kind: String,
    name: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, schemars::JsonSchema)]
struct Source {
    #[serde(default)]
    volts: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    phases: Vec<Phase>,
}

#[derive(Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
struct Phase {
    amps: u32,
}

#[derive(Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[serde(untagged)]
enum Shade {
    Paper { sheets: u32 },
    Glass { colour: String },
}

#[derive(Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
struct Open {
    #[serde(flatten)]
    any: BTreeMap<String, serde_json::Value>,
}

kind!(Lamp {});

fn lamp(spec: Value) -> Value {
    json!({"apiVersion": "demo.reknit.dev/v1", "kind": "Lamp", "metadata": {"name": "x", "odd": 1}, "spec": spec})
}

/// Decodes a lamp in an update of `old`. Returns the error without its prefix.
fn decode_strictly(value: &Value, old: Option<&Value>) -> Result<Decoded<Lamp>, String> {
    let (object, old) = (Some(value.clone()), old.cloned());
    let decoder = Decoder::new(Arc::new(Definition::of::<Lamp>()));
    let decoded = decoder.new_object(&Change { request: Request::new(Operation::Update), object, old });
    decoded.map_err(|error| error.to_string().replace("cannot decode incoming new object: ", ""))
}

/// Returns the error of decoding a lamp with this spec, or an empty text.
fn decoding_error(spec: Value) -> String {
    decode_strictly(&lamp(spec), None).err().unwrap_or_default()
}

#[test]
fn the_decoders_of_a_kind_share_its_definition() {
    let mut definitions = Definitions::default();
    let (defaults, rules) = (definitions.decoder::<Lamp>(), definitions.decoder::<Lamp>());
    assert!(Arc::ptr_eq(&defaults.definition, &rules.definition));
}

#[test]
fn known_fields_are_allowed_even_if_they_are_empty() {
    let spec = json!({
        "room": "hall", "bulbs": [], "shade": null, "source": {"volts": 230}, "tags": {"a": {"watts": 1}},
        "extra": {"anything": {"goes": 1}},
    });
    assert_eq!(decoding_error(spec), "");
}

#[test]
fn unknown_fields_are_named_by_their_paths() {
    let spec = json!({
        "romm": "hall", "room": "hall", "bulbs": [{"watts": 1}, {"watts": 1, "wats": 2}],
        "source": {"volts": 1, "amps": 2}, "shade": {"sheets": 1, "folds": 2}, "tags": {"a": {"watts": 1, "b": 1}},
    });
    assert_eq!(
        decoding_error(spec),
        "unknown field \"spec.bulbs[1].wats\", unknown field \"spec.romm\", unknown field \"spec.shade.folds\", \
         unknown field \"spec.source.amps\", unknown field \"spec.tags.a.b\""
    );
}

#[test]
fn an_unknown_field_beside_the_spec_is_named() {
    let mut value = lamp(json!({"room": "hall"}));
    value["sepc"] = json!({});
    let error = decode_strictly(&value, None).err().unwrap();
    assert_eq!(error, "unknown field \"sepc\"");
}

#[test]
fn a_missing_field_and_a_wrong_type_are_named_by_their_paths() {
    assert_eq!(decoding_error(json!({})), "missing field(s): spec.room");
    assert_eq!(
        decoding_error(json!({"room": "hall", "bulbs": [{}]})),
        "missing field(s): spec.bulbs[0].watts"
    );
    assert_eq!(decoding_error(json!({"room": 1})), "spec.room: invalid type: integer `1`, expected a string");
}

#[test]
fn a_fault_below_a_flattened_field_is_named_by_its_whole_path() {
    let with_power = |power: Value| {
        let mut spec = json!({"room": "hall"});
        spec.as_object_mut().unwrap().extend(power.as_object().unwrap().clone());
        decoding_error(spec)
    };
    assert_eq!(with_power(json!({"target": {"kind": "Plug"}})), "missing field(s): spec.target.name");
    assert_eq!(
        with_power(json!({"source": {"volts": "many"}})),
        "spec.source.volts: invalid type: string \"many\", expected u32"
    );
    assert_eq!(
        with_power(json!({"source": {"phases": [{"amps": 1}, {"amps": -1}]}})),
        "spec.source.phases[1].amps: invalid value: integer `-1`, expected u32"
    );
    assert_eq!(
        with_power(json!({"source": {"phases": [{"amps": 1}, {}]}})),
        "missing field(s): spec.source.phases[1].amps"
    );
}

#[test]
fn unknown_fields_of_the_old_object_are_allowed() {
    let lamp_with = |fields: &[&str]| {
        let mut spec = json!({"room": "hall"});
        fields.iter().for_each(|field| spec[*field] = json!(1));
        lamp(spec)
    };
    assert!(decode_strictly(&lamp_with(&["a"]), Some(&lamp_with(&["a"]))).is_ok());
    let error = decode_strictly(&lamp_with(&["a", "b"]), Some(&lamp_with(&["a"]))).err().unwrap();
    assert_eq!(error, "unknown field \"spec.b\"");
}

#[test]
fn unknown_fields_of_the_old_object_are_allowed_after_they_moved_within_a_list() {
    let lamp_with = |bulbs: Value| lamp(json!({"room": "hall", "bulbs": bulbs}));
    let old = lamp_with(json!([{"watts": 1, "odd": 1}]));
    assert!(decode_strictly(&lamp_with(json!([{"watts": 2}, {"watts": 1, "odd": 1}])), Some(&old)).is_ok());
    let error =
        decode_strictly(&lamp_with(json!([{"watts": 2}, {"watts": 1, "new": 1}])), Some(&old)).err().unwrap();
    assert_eq!(error, "unknown field \"spec.bulbs[1].new\"");
}

#[test]
fn many_unknown_fields_are_found_quickly_and_counted() {
    let lamp_with_fields = |prefix: &str| {
        let fields = (0..150_000).map(|n| (format!("{prefix}{n:06}"), json!(1)));
        let mut spec: Map<_, _> = fields.collect();
        spec.insert("room".into(), json!("hall"));
        lamp(spec.into())
    };
    let (old, new) = (lamp_with_fields("a"), lamp_with_fields("b"));
    // The processor time of this thread does not depend on the load of the machine.
    let seconds = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
    let start = seconds();
    assert!(decode_strictly(&new, Some(&new)).is_ok());
    let error = decode_strictly(&new, Some(&old)).err().unwrap();
    assert!(error.starts_with("unknown field \"spec.b000000\", unknown field \"spec.b000001\", "), "{error}");
    assert!(error.ends_with("unknown field \"spec.b000019\" and 149980 more"), "{error}");
    assert!(seconds() - start < 20, "{} s", seconds() - start);
}

#[test]
fn a_very_long_name_is_shortened_in_the_message() {
    let long = "k".repeat(700_000);
    let mut bulb: Map<_, _> = (0..100_000).map(|n| (format!("f{n:06}"), json!(1))).collect();
    bulb.insert("watts".into(), json!(1));
    let error = decoding_error(json!({"room": "hall", "tags": {long: bulb}}));
    assert!(error.starts_with(&format!("unknown field \"spec.tags.{}....f000000\", ", "k".repeat(200))));
    assert!(error.ends_with(" and 99980 more"));
    assert!(error.len() < 10_000, "{}", error.len());
}
