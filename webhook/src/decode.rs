//! Decodes objects, and names every field that their Kind does not know.

use std::{collections::HashSet, marker::PhantomData};

use kube::CustomResourceExt;
use reknit_apis::{FieldError, Kind};
use serde_json::{Map, Value};

/// How many of the fields that a Kind does not know a refusal names.
const NAMED: usize = 20;

/// Decodes one Kind strictly.
///
/// A field is unknown when it is lost between reading the object and writing it again, and the schema of the Kind does
/// not have it either: the first alone would also name an empty list that is not written, the second alone what a
/// flattened map takes up.
pub(crate) struct Decoder<K> {
    schema: Value,
    kind: PhantomData<fn() -> K>,
}

/// An object, and what its Kind writes of it.
pub(crate) struct Decoded<K> {
    pub(crate) object: K,
    pub(crate) written: Value,
}

/// Decodes it, whatever else is in it.
pub(crate) fn leniently<K: Kind>(value: &Value) -> Result<Decoded<K>, String> {
    let object: K = serde_path_to_error::deserialize(value).map_err(|error| complaint(&error))?;
    let written = serde_json::to_value(&object).map_err(|error| error.to_string())?;
    Ok(Decoded { object, written })
}

impl<K: Kind + CustomResourceExt> Decoder<K> {
    pub(crate) fn new() -> Self {
        let version = K::version(&());
        let versions = K::crd().spec.versions.into_iter();
        let schema =
            versions.filter(|known| known.name == version).find_map(|known| known.schema?.open_api_v3_schema);
        // A schema is JSON; where there is none, every field is known.
        let schema = schema.and_then(|schema| serde_json::to_value(schema).ok()).unwrap_or_default();
        Self { schema, kind: PhantomData }
    }

    /// Decodes it, and refuses what its Kind does not know, but for what was in the object before: an object that
    /// was stored with such a field can still lose its finalizer.
    pub(crate) fn strictly(&self, value: &Value, old: Option<&Value>) -> Result<Decoded<K>, String> {
        let decoded = leniently(value)?;
        let mut unknown = self.unknown(value, &decoded.written);
        if let Some(old) = old.filter(|_| !unknown.is_empty()) {
            let written = leniently::<K>(old).map(|old| old.written).unwrap_or_default();
            let before: HashSet<_> = self.unknown(old, &written).iter().map(|path| anywhere(path)).collect();
            unknown.retain(|path| !before.contains(&anywhere(path)));
        }
        match unknown.is_empty() {
            true => Ok(decoded),
            false => Err(refusal(&unknown)),
        }
    }

    /// The paths of the fields that are in `value`, and in neither what was written of it nor the schema.
    fn unknown(&self, value: &Value, written: &Value) -> Vec<String> {
        let mut unknown = Vec::new();
        for (key, value) in value.as_object().into_iter().flatten() {
            if !matches!(&**key, "apiVersion" | "kind" | "metadata") {
                find_field(key, key.clone(), value, written, &self.schema, &mut unknown);
            }
        }
        unknown
    }
}

/// The path without the places in lists: an item that is inserted in front moves all behind it.
fn anywhere(path: &str) -> String {
    let mut parts = path.split('[');
    let mut general = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        general.push('[');
        general += part.trim_start_matches(|character: char| character.is_ascii_digit());
    }
    general
}

fn refusal(unknown: &[String]) -> String {
    let named = unknown.iter().take(NAMED).map(|path| format!("unknown field {path:?}"));
    let named = named.collect::<Vec<_>>().join(", ");
    match unknown.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// In Knative's words where there are any.
fn complaint(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let (path, said) = (error.path().to_string(), error.inner().to_string());
    let field = said.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    match (field, &*path) {
        (Some(field), ".") => FieldError::missing([field]).to_string(),
        (Some(field), path) => FieldError::missing([field]).via_field(path).to_string(),
        (None, ".") => said,
        (None, path) => format!("{path}: {said}"),
    }
}

fn find_field(
    key: &str,
    path: String,
    value: &Value,
    written: &Value,
    schema: &Value,
    unknown: &mut Vec<String>,
) {
    let (written, schema) = (written.get(key), field_schema(schema, key));
    match schema {
        Field::Absent if written.is_none() => unknown.push(path),
        Field::Absent | Field::Any => {}
        Field::Known(schema) => find_below(&path, value, written.unwrap_or(&Value::Null), schema, unknown),
    }
}

fn find_below(path: &str, value: &Value, written: &Value, schema: &Value, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                find_field(key, format!("{path}.{key}"), value, written, schema, unknown);
            }
        }
        Value::Array(items) => {
            let same = written.as_array().filter(|written| written.len() == items.len());
            for (index, item) in items.iter().enumerate() {
                let written = same.map_or(&Value::Null, |written| &written[index]);
                find_below(&format!("{path}[{index}]"), item, written, &schema["items"], unknown);
            }
        }
        _ => {}
    }
}

/// What a schema says of a field.
enum Field<'a> {
    Known(&'a Value),
    /// Anything may be there.
    Any,
    Absent,
}

fn field_schema<'a>(schema: &'a Value, key: &str) -> Field<'a> {
    let properties = schema.get("properties").and_then(Value::as_object);
    if let Some(known) = properties.and_then(|properties| properties.get(key)) {
        return Field::Known(known);
    }
    match schema.get("additionalProperties") {
        Some(values @ Value::Object(_)) => return Field::Known(values),
        Some(Value::Bool(true)) => return Field::Any,
        _ => {}
    }
    match properties.is_none_or(Map::is_empty) && is_open(schema) {
        true => Field::Any,
        false => Field::Absent,
    }
}

/// Whether a schema without properties allows any: it may also say that there are none.
fn is_open(schema: &Value) -> bool {
    let says = |key: &str| schema.get(key).is_some_and(|value| value.as_bool() == Some(true));
    schema.get("type").is_none()
        || says("x-kubernetes-preserve-unknown-fields")
        || says("x-kubernetes-embedded-resource")
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        time::{Duration, Instant},
    };

    use serde::{Deserialize, Serialize};
    use serde_json::json;

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
    }

    #[derive(Serialize, Deserialize, Clone, Debug, Default, schemars::JsonSchema)]
    struct Source {
        #[serde(default)]
        volts: u32,
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

    impl Kind for Lamp {
        type Status = ();
    }

    fn lamp(spec: Value) -> Value {
        json!({"apiVersion": "demo.reknit.dev/v1", "kind": "Lamp", "metadata": {"name": "x", "odd": 1}, "spec": spec})
    }

    fn refusal(spec: Value) -> String {
        Decoder::<Lamp>::new().strictly(&lamp(spec), None).err().unwrap_or_default()
    }

    #[test]
    fn what_the_kind_knows_is_decoded_and_empty_values_are_no_strangers() {
        let spec = json!({
            "room": "hall", "bulbs": [], "shade": null, "source": {"volts": 230}, "tags": {"a": {"watts": 1}},
            "extra": {"anything": {"goes": 1}},
        });
        assert_eq!(refusal(spec), "");
    }

    #[test]
    fn unknown_fields_are_named_by_their_paths_wherever_they_are() {
        let spec = json!({
            "romm": "hall", "room": "hall", "bulbs": [{"watts": 1}, {"watts": 1, "wats": 2}],
            "source": {"volts": 1, "amps": 2}, "shade": {"sheets": 1, "folds": 2}, "tags": {"a": {"watts": 1, "b": 1}},
        });
        assert_eq!(
            refusal(spec),
            "unknown field \"spec.bulbs[1].wats\", unknown field \"spec.romm\", unknown field \"spec.shade.folds\", \
             unknown field \"spec.source.amps\", unknown field \"spec.tags.a.b\""
        );
    }

    #[test]
    fn a_field_beside_the_spec_is_named_too() {
        let mut value = lamp(json!({"room": "hall"}));
        value["sepc"] = json!({});
        let said = Decoder::<Lamp>::new().strictly(&value, None).err().unwrap();
        assert_eq!(said, "unknown field \"sepc\"");
    }

    #[test]
    fn a_missing_field_and_a_wrong_type_are_named_by_their_paths() {
        assert_eq!(refusal(json!({})), "missing field(s): spec.room");
        assert_eq!(refusal(json!({"room": "hall", "bulbs": [{}]})), "missing field(s): spec.bulbs[0].watts");
        assert_eq!(refusal(json!({"room": 1})), "spec.room: invalid type: integer `1`, expected a string");
    }

    #[test]
    fn what_was_unknown_before_does_not_hold_up_a_change() {
        let with = |fields: &[&str]| {
            let mut spec = json!({"room": "hall"});
            fields.iter().for_each(|field| spec[*field] = json!(1));
            lamp(spec)
        };
        let decoder = Decoder::<Lamp>::new();
        assert!(decoder.strictly(&with(&["a"]), Some(&with(&["a"]))).is_ok());
        let said = decoder.strictly(&with(&["a", "b"]), Some(&with(&["a"]))).err().unwrap();
        assert_eq!(said, "unknown field \"spec.b\"");
    }

    #[test]
    fn what_was_unknown_in_a_list_before_may_move_within_it() {
        let with = |bulbs: Value| lamp(json!({"room": "hall", "bulbs": bulbs}));
        let old = with(json!([{"watts": 1, "odd": 1}]));
        let decoder = Decoder::<Lamp>::new();
        assert!(decoder.strictly(&with(json!([{"watts": 2}, {"watts": 1, "odd": 1}])), Some(&old)).is_ok());
        let said =
            decoder.strictly(&with(json!([{"watts": 2}, {"watts": 1, "new": 1}])), Some(&old)).err().unwrap();
        assert_eq!(said, "unknown field \"spec.bulbs[1].new\"");
    }

    #[test]
    fn very_many_unknown_fields_are_found_soon_and_counted() {
        let with = |name: &str| {
            let fields = (0..150_000).map(|n| (format!("{name}{n:06}"), json!(1)));
            let mut spec: Map<_, _> = fields.collect();
            spec.insert("room".into(), json!("hall"));
            lamp(spec.into())
        };
        let (old, new) = (with("a"), with("b"));
        let (decoder, start) = (Decoder::<Lamp>::new(), Instant::now());
        assert!(decoder.strictly(&new, Some(&new)).is_ok());
        let said = decoder.strictly(&new, Some(&old)).err().unwrap();
        println!("compared in {:?}", start.elapsed());
        assert!(
            said.starts_with("unknown field \"spec.b000000\", unknown field \"spec.b000001\", "),
            "{said}"
        );
        assert!(said.ends_with("unknown field \"spec.b000019\" and 149980 more"), "{said}");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}
