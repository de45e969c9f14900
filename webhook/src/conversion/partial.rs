//! Conversion of objects that lack required fields.
//!
//! For server-side apply, the API server converts objects from which it has removed fields, at times all but the
//! metadata. A typed conversion needs the required fields, so [`convert`] fills them in from the schema, several times
//! with different values, and keeps the fields on which all results agree: the others come from the values filled in.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Map, Value, json};

/// The values filled in by one attempt. There are several, since the code of a Kind may refuse some.
#[derive(Clone, Copy)]
struct Sample {
    integer: i64,
    text: &'static str,
    time: &'static str,
    /// Chooses a boolean, and a value of an enum.
    index: usize,
}

const SAMPLES: [Sample; 6] = [
    Sample { integer: 0, text: "0", time: "2000-01-01T00:00:00Z", index: 0 },
    Sample { integer: 1_000_000, text: "1", time: "2001-01-01T00:00:00Z", index: 1 },
    Sample { integer: 1, text: "", time: "2002-01-01T00:00:00Z", index: 2 },
    Sample { integer: 1_000, text: "x", time: "2003-01-01T00:00:00Z", index: 3 },
    Sample { integer: 2, text: "1s", time: "2004-01-01T00:00:00Z", index: 4 },
    Sample { integer: 60, text: "a.b/c:1", time: "2005-01-01T00:00:00Z", index: 5 },
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
            for name in required(schema, fields) {
                let of_field = &schema["properties"][&name];
                fields.entry(name).or_insert_with(|| sample_of(of_field, filling));
            }
            for (name, field) in fields {
                fill_in(field, schema_of(schema, name), filling);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill_in(item, &schema["items"], filling)),
        _ => {}
    }
}

/// Returns the names of the fields that a schema requires. Of alternatives, none of which the object satisfies, the
/// first counts.
fn required(schema: &Value, fields: &Map<String, Value>) -> Vec<String> {
    let names = |schema: &Value| {
        let names = schema["required"].as_array().into_iter().flatten();
        names.filter_map(|name| Some(name.as_str()?.to_owned())).collect::<Vec<_>>()
    };
    let mut required = names(schema);
    for alternatives in ["oneOf", "anyOf"].iter().filter_map(|key| schema[*key].as_array()) {
        let is_satisfied = |alternative| names(alternative).iter().all(|name| fields.contains_key(name));
        if !alternatives.iter().any(is_satisfied) {
            required.extend(alternatives.first().map(names).unwrap_or_default());
        }
    }
    required
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
    if let Some(values) = schema["enum"].as_array().filter(|values| !values.is_empty()) {
        return values[sample.index % values.len()].clone();
    }
    match schema["type"].as_str() {
        Some("string") if schema["format"] == "date-time" => json!(sample.time),
        Some("string") => {
            let length = schema["minLength"].as_u64().unwrap_or_default().min(256) as usize;
            json!(format!("{:0<length$}", sample.text))
        }
        Some("boolean") => json!(sample.index % 2 == 1),
        Some("integer" | "number") => json!(clamp(sample.integer, schema)),
        _ if schema["x-kubernetes-int-or-string"] == true => json!(sample.integer),
        _ => json!({}),
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
        json!({"type": "object", "required": ["metadata", "spec"], "properties": {"spec": {
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

    #[test]
    fn the_missing_fields_are_named() {
        let complete = json!({"metadata": {}, "spec": {"watts": 60, "shade": "glass", "room": "hall"}});
        assert_eq!(missing_fields(&complete, &schema()), Vec::<String>::new());
        assert_eq!(missing_fields(&json!({"metadata": {}}), &schema()), ["spec"]);
        let partial = json!({"metadata": {}, "spec": {"watts": 60, "shade": "glass"}});
        assert_eq!(missing_fields(&partial, &schema()), ["spec.room"]);
    }
}
