//! Conversion of objects that lack required fields.
//!
//! For server-side apply, the API server converts objects from which it has removed fields, at times all but the
//! metadata. A typed conversion needs the required fields, so [`convert`] fills them in from the schema, several times
//! with different values, and keeps the fields on which all results agree: the others come from the values filled in.

use std::{
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
};

use serde_json::{Map, Value, json};

/// The values filled in by one attempt. There are several, since the code of a Kind may refuse some.
#[derive(Clone, Copy)]
struct Sample {
    integer: i64,
    text: &'static str,
    time: &'static str,
    /// Chooses a boolean, a value of an enum, one of several alternatives, and a text of a format.
    index: usize,
}

const SAMPLES: [Sample; 8] = [
    Sample { integer: 0, text: "0", time: "2000-01-01T00:00:00Z", index: 0 },
    Sample { integer: 1_000_000, text: "1", time: "2001-01-01T00:00:00Z", index: 1 },
    Sample { integer: 1, text: "", time: "2002-01-01T00:00:00Z", index: 2 },
    Sample { integer: 1_000, text: "x", time: "2003-01-01T00:00:00Z", index: 3 },
    Sample { integer: 2, text: "1s", time: "2004-01-01T00:00:00Z", index: 4 },
    Sample { integer: 60, text: "a.b/c:1", time: "2005-01-01T00:00:00Z", index: 5 },
    Sample { integer: 5, text: "1.0.0", time: "2006-01-01T00:00:00Z", index: 6 },
    Sample { integer: 7, text: "2.0.0", time: "2007-01-01T00:00:00Z", index: 7 },
];

/// The maximum number of fields whose values are replaced on their own.
const MAX_REPLACED: usize = 32;

/// The values filled in by one attempt: those of one sample, but for one field.
struct Filling {
    sample: usize,
    /// The number of a field, in the order in which they are filled in, and the sample of its value.
    replaced: Option<(usize, usize)>,
    /// The number of fields that are filled in.
    fields: usize,
}

impl Filling {
    fn of(sample: usize) -> Self {
        Self { sample, replaced: None, fields: 0 }
    }

    /// Returns the sample of the next field.
    fn next_sample(&mut self) -> Sample {
        let field = self.fields;
        self.fields += 1;
        let replacement = self.replaced.filter(|(replaced, _)| *replaced == field);
        SAMPLES[replacement.map_or(self.sample, |(_, sample)| sample)]
    }
}

/// Returns true if an object has no field beside its metadata.
pub(super) fn is_only_metadata(object: &Value) -> bool {
    let is_metadata = |key: &String| matches!(&**key, "apiVersion" | "kind" | "metadata");
    object.as_object().is_some_and(|fields| fields.keys().all(is_metadata))
}

/// Converts an object that lacks fields which its schema requires. Returns `None` if no attempt succeeds.
pub(super) fn convert(
    object: &Value,
    schema: &Value,
    convert: impl Fn(Value) -> Result<Value, String>,
) -> Option<Value> {
    let attempt = |mut filling: Filling| {
        let mut completed = object.clone();
        fill_in(&mut completed, schema, &mut filling);
        // The code of the Kind may not expect these values.
        Some((catch_unwind(AssertUnwindSafe(|| convert(completed))).ok()?.ok()?, filling))
    };
    let keep_common = |one: Value, other: Value| common(&one, &other).unwrap_or_else(|| json!({}));
    let mut converted: Vec<_> =
        (0..SAMPLES.len()).filter_map(|sample| attempt(Filling::of(sample))).collect();
    if let [(_, Filling { sample, fields, .. })] = converted[..] {
        // The code of the Kind accepts no other values together, but perhaps one by one.
        let replaced = (0..fields.min(MAX_REPLACED))
            .flat_map(|field| (0..SAMPLES.len()).map(move |other| (field, other)));
        let fillings = replaced.map(|replaced| Filling { sample, replaced: Some(replaced), fields: 0 });
        converted.extend(fillings.filter_map(attempt));
    }
    converted.into_iter().map(|(converted, _)| converted).reduce(keep_common)
}

/// Returns true if an object can be decoded, at least with some values for the fields that it lacks.
pub(super) fn is_readable(object: &Value, schema: &Value, decodes: &dyn Fn(&Value) -> bool) -> bool {
    let with = |sample: usize| {
        let mut completed = object.clone();
        fill_in(&mut completed, schema, &mut Filling::of(sample));
        // The code of the Kind may not expect these values.
        catch_unwind(AssertUnwindSafe(|| decodes(&completed))).unwrap_or(false)
    };
    decodes(object) || (0..SAMPLES.len()).any(with)
}

/// Returns the paths of the fields that an object lacks although its schema requires them.
pub(super) fn missing_fields(object: &Value, schema: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    add_missing_fields("", object, schema, &mut missing);
    missing
}

fn add_missing_fields(path: &str, value: &Value, schema: &Value, missing: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let join = |name: &str| if path.is_empty() { name.into() } else { format!("{path}.{name}") };
            let absent = required(schema, fields).into_iter().filter(|name| !fields.contains_key(name));
            missing.extend(absent.map(|name| join(&name)));
            for (name, field) in fields {
                add_missing_fields(&join(name), field, schema_of(schema, name), missing);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                add_missing_fields(&format!("{path}[{index}]"), item, &schema["items"], missing);
            }
        }
        _ => {}
    }
}

/// Returns the schema of a field. Null if it has none.
fn schema_of<'a>(schema: &'a Value, name: &str) -> &'a Value {
    schema["properties"].get(name).unwrap_or(&schema["additionalProperties"])
}

/// Adds the required fields that a value lacks, at any depth.
fn fill_in(value: &mut Value, schema: &Value, filling: &mut Filling) {
    match value {
        Value::Object(fields) => {
            add_tags(fields, schema);
            add_fields(fields, &listed(schema), schema, filling);
            // The fields that were added may exclude alternatives: the tag of an enum chooses its variant.
            for choices in open_choices(schema, fields) {
                let chosen = filling.next_sample().index % choices.len();
                add_fields(fields, &choices[chosen], schema, filling);
            }
            for (name, field) in fields {
                fill_in(field, schema_of(schema, name), filling);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill_in(item, &schema["items"], filling)),
        _ => {}
    }
}

/// Adds the tag of a variant to an object that has the fields of the variant, and of no other one as many.
fn add_tags(fields: &mut Map<String, Value>, schema: &Value) {
    for alternatives in choices(schema) {
        let has_fields = |alternative: &&Value| {
            let names = listed(alternative);
            !names.is_empty() && has_all(fields, &names) && !is_excluded(alternative, fields)
        };
        let satisfied: Vec<_> = alternatives.iter().filter(has_fields).collect();
        let most = satisfied.iter().map(|alternative| listed(alternative).len()).max();
        let mut closest = satisfied.iter().filter(|alternative| Some(listed(alternative).len()) == most);
        let (Some(variant), None) = (closest.next(), closest.next()) else { continue };
        for (name, values) in restricted(variant) {
            if let [only] = &values[..] {
                fields.entry(name).or_insert_with(|| only.clone());
            }
        }
    }
}

fn add_fields(fields: &mut Map<String, Value>, names: &[String], schema: &Value, filling: &mut Filling) {
    for name in names {
        let of_field = &schema["properties"][name];
        fields.entry(name).or_insert_with(|| sample_of(of_field, filling));
    }
}

/// Returns the names of the fields that a schema requires. Of alternatives, none of which the object satisfies, the
/// first counts that is possible.
fn required(schema: &Value, fields: &Map<String, Value>) -> Vec<String> {
    let mut required = listed(schema);
    required.extend(
        open_choices(schema, fields).into_iter().flat_map(|choices| choices.into_iter().next()).flatten(),
    );
    required
}

/// Returns the names that a schema lists as required, also in `allOf`.
fn listed(schema: &Value) -> Vec<String> {
    let own = schema["required"].as_array().into_iter().flatten();
    let own = own.filter_map(|name| Some(name.as_str()?.to_owned()));
    own.chain(parts(schema, "allOf").iter().flat_map(listed)).collect()
}

fn parts<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns each `oneOf` and `anyOf` of a schema. Those of several flattened enums are in `allOf`.
fn choices(schema: &Value) -> impl Iterator<Item = &[Value]> {
    let schemas = iter::once(schema).chain(parts(schema, "allOf"));
    schemas.flat_map(|schema| ["oneOf", "anyOf"].map(|key| parts(schema, key)))
}

fn has_all(fields: &Map<String, Value>, names: &[String]) -> bool {
    names.iter().all(|name| fields.contains_key(name))
}

/// Returns the alternatives of which the object satisfies none: of each `oneOf` and `anyOf` those that its fields do not
/// exclude, each with the names of the fields that it requires.
fn open_choices(schema: &Value, fields: &Map<String, Value>) -> Vec<Vec<Vec<String>>> {
    let possible = |alternatives: &[Value]| -> Vec<_> {
        alternatives.iter().filter(|alternative| !is_excluded(alternative, fields)).map(listed).collect()
    };
    let is_open =
        |names: &Vec<Vec<String>>| !names.is_empty() && !names.iter().any(|names| has_all(fields, names));
    choices(schema).map(possible).filter(is_open).collect()
}

/// Returns true if a field of the object has a value that the alternative does not list, such as another tag.
fn is_excluded(alternative: &Value, fields: &Map<String, Value>) -> bool {
    let excludes = |(name, values): (&String, &Vec<Value>)| {
        fields.get(name).is_some_and(|value| !values.contains(value))
    };
    restricted(alternative).into_iter().any(excludes)
}

/// Returns the fields of an alternative that may have listed values only, also those in `allOf`.
fn restricted(alternative: &Value) -> Vec<(&String, &Vec<Value>)> {
    let own = alternative["properties"].as_object().into_iter().flatten();
    let own = own.filter_map(|(name, schema)| Some((name, schema["enum"].as_array()?)));
    own.chain(parts(alternative, "allOf").iter().flat_map(restricted)).collect()
}

/// Returns a value that the schema allows.
fn sample_of(schema: &Value, filling: &mut Filling) -> Value {
    match schema["type"].as_str() {
        Some("object") => {
            let mut object = json!({});
            fill_in(&mut object, schema, filling);
            return object;
        }
        Some("array") => {
            let length = schema["minItems"].as_u64().unwrap_or_default().min(16);
            return (0..length).map(|_| sample_of(&schema["items"], filling)).collect();
        }
        _ => {}
    }
    let sample = filling.next_sample();
    if let Some(values) = values(schema) {
        return values[sample.index % values.len()].clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!(text_of(schema, sample)),
        Some("boolean") => json!(sample.index % 2 == 1),
        Some("integer" | "number") => json!(clamp(sample.integer, schema)),
        _ if schema["x-kubernetes-int-or-string"] == true => json!(sample.integer),
        // A value of several types.
        _ => match sample.index % 3 {
            0 => json!({}),
            1 => json!(sample.integer),
            _ => json!(sample.text),
        },
    }
}

/// Returns the values that a schema lists. Those of an optional enum are in `allOf`, and those of the units of an enum that
/// also has data in `anyOf`.
fn values(schema: &Value) -> Option<&Vec<Value>> {
    let of_parts = ["allOf", "anyOf"].iter().flat_map(|key| parts(schema, key));
    let lists = [schema].into_iter().chain(of_parts).filter_map(|schema| schema["enum"].as_array());
    lists.into_iter().find(|values| !values.is_empty())
}

/// Returns a text of the format of a schema: of one that types of Rust have, or the text of the sample.
fn text_of(schema: &Value, sample: Sample) -> String {
    let Sample { text, time, index, .. } = sample;
    match schema["format"].as_str() {
        Some("date-time") => time.into(),
        Some("partial-date-time") => time.trim_end_matches('Z').into(),
        Some("date") => time.chars().take_while(|char| *char != 'T').collect(),
        Some("partial-time") => format!("00:00:0{index}"),
        Some("uuid") => format!("00000000-0000-4000-8000-00000000000{index}"),
        Some("ip" | "ipv4") => format!("10.0.0.{index}"),
        Some("ipv6") => format!("fd00::{index}"),
        Some("uri" | "uri-reference") => format!("https://{index}.example/"),
        Some("email") => format!("{index}@example.org"),
        Some("byte") => format!("AAA{index}"),
        _ => {
            let length = schema["minLength"].as_u64().unwrap_or_default().min(256) as usize;
            format!("{text:0<length$}")
        }
    }
}

fn clamp(integer: i64, schema: &Value) -> i64 {
    let bound = |key: &str| schema[key].as_f64().map(|bound| bound as i64);
    let lowest = integer.max(bound("minimum").unwrap_or(integer));
    lowest.min(bound("maximum").unwrap_or(lowest))
}

/// Returns what two values have in common. `None` if nothing.
fn common(first: &Value, second: &Value) -> Option<Value> {
    match (first, second) {
        (first, second) if first == second => Some(first.clone()),
        (Value::Object(first), Value::Object(second)) => {
            let fields =
                first.iter().filter_map(|(key, value)| Some((key.clone(), common(value, second.get(key)?)?)));
            let fields: Map<_, _> = fields.collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        (Value::Array(first), Value::Array(second)) if first.len() == second.len() => {
            first.iter().zip(second).map(|(first, second)| common(first, second)).collect()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        let metadata = json!({"type": "object"});
        json!({"type": "object", "required": ["metadata", "spec"], "properties": {"metadata": metadata, "spec": {
            "type": "object", "required": ["watts", "room", "shade"], "properties": {
                "watts": {"type": "integer", "minimum": 0, "maximum": 5000},
                "room": {"type": "string", "minLength": 2},
                "colour": {"type": "string"},
                "shade": {"type": "string", "enum": ["paper", "glass"]},
            },
        }}})
    }

    /// Renames `watts` to `milliwatts`, and needs all required fields.
    fn to_milliwatts(mut object: Value) -> Result<Value, String> {
        let spec = object["spec"].as_object_mut().ok_or("spec")?;
        let watts = spec.remove("watts").and_then(|watts| watts.as_i64()).ok_or("watts")?;
        spec.insert("milliwatts".into(), json!(watts * 1000));
        let _ = (spec.get("room").ok_or("room")?, spec.get("shade").ok_or("shade")?);
        Ok(object)
    }

    #[test]
    fn fields_that_come_from_filled_in_values_are_left_out() {
        let partial = json!({"spec": {"watts": 60, "colour": "red"}});
        let converted = convert(&partial, &schema(), to_milliwatts).unwrap();
        assert_eq!(converted, json!({"metadata": {}, "spec": {"milliwatts": 60_000, "colour": "red"}}));
        let without_spec = json!({"metadata": {"name": "x"}});
        assert_eq!(
            convert(&without_spec, &schema(), to_milliwatts).unwrap(),
            json!({"metadata": {"name": "x"}})
        );
    }

    #[test]
    fn values_that_the_code_of_a_kind_refuses_are_replaced() {
        let picky = |object: Value| match &object["spec"]["room"] {
            room if *room == "1s" => to_milliwatts(object),
            room if *room == "x0" => panic!("{room}"),
            room => Err(room.to_string()),
        };
        let partial = json!({"metadata": {}, "spec": {"watts": 60, "shade": "glass"}});
        let converted = convert(&partial, &schema(), picky).unwrap();
        assert_eq!(converted["spec"]["milliwatts"], 60_000);
        assert_eq!(convert(&partial, &schema(), |_| Err("no".into())), None);
    }

    #[test]
    fn of_values_that_the_code_of_a_kind_accepts_only_together_none_is_kept() {
        let picky = |object: Value| match &object["spec"]["room"] {
            room if *room == "1s" => to_milliwatts(object),
            room => Err(room.to_string()),
        };
        let partial = json!({"metadata": {}, "spec": {"colour": "red"}});
        let converted = convert(&partial, &schema(), picky).unwrap();
        assert_eq!(converted["spec"], json!({"colour": "red", "room": "1s"}), "no other room is accepted");
    }

    /// The schema of a tagged enum, as `structural` writes it.
    fn tagged(variants: &[(&str, &[&str])]) -> Value {
        let variant = |(tag, fields): &(&str, &[&str])| {
            let tag = json!({"enum": [tag]});
            json!({"allOf": [{"properties": {"type": tag}, "required": fields}]})
        };
        let tags: Vec<_> = variants.iter().map(|(tag, _)| tag).collect();
        let alternatives: Vec<_> = variants.iter().map(variant).collect();
        let integer = json!({"type": "integer"});
        json!({"type": "object", "required": ["type"], "oneOf": alternatives,
            "properties": {"type": {"type": "string", "enum": tags}, "x": integer, "y": integer}})
    }

    #[test]
    fn the_fields_of_a_variant_choose_its_tag_unless_another_variant_has_them_too() {
        let filled = |schema: &Value, mut object: Value| {
            add_tags(object.as_object_mut().unwrap(), schema);
            object["type"].clone()
        };
        let nested = tagged(&[("A", &["x"]), ("B", &["x", "y"]), ("C", &[])]);
        assert_eq!(filled(&nested, json!({"x": 1, "y": 2})), "B");
        assert_eq!(filled(&nested, json!({"x": 1})), "A");
        assert_eq!(filled(&nested, json!({"type": "C", "x": 1})), "C");
        let equal = tagged(&[("A", &["x"]), ("D", &["x"])]);
        assert_eq!(filled(&equal, json!({"x": 1})), Value::Null);
        let mut flattened = nested.clone();
        flattened["allOf"] = json!([{"oneOf": [{"required": ["u"]}, {"required": ["v"]}]}]);
        flattened["properties"]["u"] = json!({"type": "integer"});
        flattened["properties"]["v"] = json!({"type": "integer"});
        let mut object = json!({"x": 1});
        fill_in(&mut object, &flattened, &mut Filling::of(0));
        assert!(!object["u"].is_null(), "{object}");
    }

    #[test]
    fn the_missing_fields_are_named() {
        let complete = json!({"metadata": {}, "spec": {"watts": 60, "shade": "glass", "room": "hall"}});
        assert_eq!(missing_fields(&complete, &schema()), Vec::<String>::new());
        assert_eq!(missing_fields(&json!({"metadata": {}}), &schema()), ["spec"]);
        let partial = json!({"metadata": {}, "spec": {"watts": 60, "shade": "glass"}});
        assert_eq!(missing_fields(&partial, &schema()), ["spec.room"]);
    }
}
