//! Decodes objects, and names every field that their Kind does not know.

use std::{
    collections::{HashSet, hash_map::RandomState},
    fmt,
    hash::BuildHasher,
    marker::PhantomData,
};

use kube::CustomResourceExt;
use reknit_apis::{FieldError, Kind, Request};
use serde_json::{Map, Value};

/// How many of the fields that a Kind does not know a refusal names.
const NAMED: usize = 20;
/// How many characters of a field's name it shows.
const SHOWN: usize = 200;

/// Decodes one Kind strictly.
///
/// A field is unknown when it is lost between reading the object and writing it again, and the schema of the Kind does
/// not have it either: the first alone would also name an empty list that is not written, the second alone what a
/// flattened map takes up.
pub(crate) struct Decoder<K> {
    schema: Value,
    /// Whether the status is a subresource: otherwise it is as much a part of the object as its spec.
    has_status: bool,
    kind: PhantomData<fn() -> K>,
}

/// An object, and what its Kind writes of it.
pub(crate) struct Decoded<K> {
    pub(crate) object: K,
    pub(crate) written: Value,
}

/// Decodes it, whatever else is in it.
pub(crate) fn decoded<K: Kind>(value: &Value) -> Result<K, String> {
    serde_path_to_error::deserialize(value).map_err(|error| complaint(&error))
}

impl<K: Kind> Decoded<K> {
    pub(crate) fn of(object: K) -> Result<Self, String> {
        let written = serde_json::to_value(&object).map_err(|error| error.to_string())?;
        Ok(Self { object, written })
    }
}

/// The object without its status, where it has one.
pub(crate) fn without_status(value: &Value) -> Option<Value> {
    let fields = value.as_object().filter(|fields| fields.contains_key("status"))?;
    let rest = fields.iter().filter(|(key, _)| *key != "status");
    Some(rest.map(|(key, value)| (key.clone(), value.clone())).collect())
}

impl<K: Kind + CustomResourceExt> Decoder<K> {
    pub(crate) fn new() -> Self {
        let (version, versions) = (K::version(&()), K::crd().spec.versions);
        let version = versions.into_iter().find(|known| known.name == version);
        let (schema, parts) = version.map(|version| (version.schema, version.subresources)).unzip();
        let has_status = parts.flatten().is_some_and(|parts| parts.status.is_some());
        // A schema is JSON; where there is none, every field is known.
        let schema = schema.flatten().and_then(|schema| schema.open_api_v3_schema);
        let schema = schema.and_then(|schema| serde_json::to_value(schema).ok()).unwrap_or_default();
        Self { schema, has_status, kind: PhantomData }
    }

    /// Decodes what is stored, without its status where that alone cannot be decoded.
    pub(crate) fn stored(&self, value: &Value) -> Result<K, String> {
        decoded(value).or_else(|why| {
            let rest = without_status(value).filter(|_| self.has_status);
            rest.and_then(|rest| decoded(&rest).ok()).ok_or(why)
        })
    }

    /// Decodes it, and refuses what its Kind does not know, but for what was in the object before: an object that
    /// was stored with such a field can still lose its finalizer.
    ///
    /// A status that cannot be decoded is left out, unless the request is about the status: the API server takes none from any
    /// other.
    pub(crate) fn strictly(
        &self,
        value: &Value,
        old: Option<&Value>,
        request: &Request,
    ) -> Result<Decoded<K>, String> {
        let why = match decoded(value) {
            Ok(object) => return self.known(value, object, old),
            Err(why) => why,
        };
        let discards = self.has_status && request.subresource.is_none();
        let Some(rest) = without_status(value).filter(|_| discards) else { return Err(why) };
        self.known(&rest, decoded(&rest).map_err(|_| why)?, old)
    }

    fn known(&self, value: &Value, object: K, old: Option<&Value>) -> Result<Decoded<K>, String> {
        let decoded = Decoded::of(object)?;
        let (mut before, mut strangers, paths) = (HashSet::new(), Strangers::default(), RandomState::new());
        self.each_unknown(value, &decoded.written, &paths, &mut |path| strangers.note(path));
        if let Some(old) = old.filter(|_| strangers.number > 0) {
            let written = self.stored(old).and_then(Decoded::of).map(|old| old.written).unwrap_or_default();
            self.each_unknown(old, &written, &paths, &mut |path| {
                before.insert(path.general);
            });
            strangers = Strangers::default();
            self.each_unknown(value, &decoded.written, &paths, &mut |path| {
                if !before.contains(&path.general) {
                    strangers.note(path);
                }
            });
        }
        match strangers.number {
            0 => Ok(decoded),
            _ => Err(strangers.to_string()),
        }
    }

    /// Tells of the fields that are in `value`, and in neither what was written of it nor the schema.
    fn each_unknown(
        &self,
        value: &Value,
        written: &Value,
        paths: &RandomState,
        tell: &mut dyn FnMut(&Path<'_>),
    ) {
        for (key, value) in value.as_object().into_iter().flatten() {
            if !matches!(&**key, "apiVersion" | "kind" | "metadata") {
                let path = Path::of(None, Step::Field(key), paths);
                find_field(key, &path, value, written, &self.schema, tell);
            }
        }
    }
}

/// Where a field is. It is written out for the few that are named: keys of maps are as long as a client likes.
struct Path<'a> {
    above: Option<&'a Path<'a>>,
    step: Step<'a>,
    paths: &'a RandomState,
    /// Of the path without the places in lists: an item that is inserted in front moves all behind it.
    general: u64,
}

enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

impl<'a> Path<'a> {
    fn of(above: Option<&'a Path<'a>>, step: Step<'a>, paths: &'a RandomState) -> Self {
        let field = match step {
            Step::Field(name) => Some(name),
            Step::Item(_) => None,
        };
        let general = paths.hash_one((above.map(|above| above.general), field));
        Self { above, step, paths, general }
    }

    fn below(&'a self, step: Step<'a>) -> Self {
        Self::of(Some(self), step, self.paths)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.step {
            Step::Item(index) => write!(f, "[{index}]"),
            Step::Field(name) => {
                f.write_str(if self.above.is_some() { "." } else { "" })?;
                match name.char_indices().nth(SHOWN) {
                    Some((end, _)) => write!(f, "{}...", &name[..end]),
                    None => f.write_str(name),
                }
            }
        }
    }
}

/// What a Kind does not know of an object: the first few, and how many there are.
#[derive(Default)]
struct Strangers {
    named: Vec<String>,
    number: usize,
}

impl Strangers {
    fn note(&mut self, path: &Path<'_>) {
        self.number += 1;
        if self.number <= NAMED {
            self.named.push(format!("unknown field {:?}", path.to_string()));
        }
    }
}

impl fmt::Display for Strangers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named.join(", "))?;
        match self.number - self.named.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
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
    path: &Path<'_>,
    value: &Value,
    written: &Value,
    schema: &Value,
    tell: &mut dyn FnMut(&Path<'_>),
) {
    let (written, schema) = (written.get(key), field_schema(schema, key));
    match schema {
        Field::Absent if written.is_none() => tell(path),
        Field::Absent | Field::Any => {}
        Field::Known(schema) => find_below(path, value, written.unwrap_or(&Value::Null), schema, tell),
    }
}

fn find_below(
    path: &Path<'_>,
    value: &Value,
    written: &Value,
    schema: &Value,
    tell: &mut dyn FnMut(&Path<'_>),
) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                find_field(key, &path.below(Step::Field(key)), value, written, schema, tell);
            }
        }
        Value::Array(items) => {
            let same = written.as_array().filter(|written| written.len() == items.len());
            for (index, item) in items.iter().enumerate() {
                let written = same.map_or(&Value::Null, |written| &written[index]);
                find_below(&path.below(Step::Item(index)), item, written, &schema["items"], tell);
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

    use reknit_apis::Operation;
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

    fn strictly(value: &Value, old: Option<&Value>) -> Result<Decoded<Lamp>, String> {
        Decoder::new().strictly(value, old, &Request::new(Operation::Update))
    }

    fn refusal(spec: Value) -> String {
        strictly(&lamp(spec), None).err().unwrap_or_default()
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
        let said = strictly(&value, None).err().unwrap();
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
        assert!(strictly(&with(&["a"]), Some(&with(&["a"]))).is_ok());
        let said = strictly(&with(&["a", "b"]), Some(&with(&["a"]))).err().unwrap();
        assert_eq!(said, "unknown field \"spec.b\"");
    }

    #[test]
    fn what_was_unknown_in_a_list_before_may_move_within_it() {
        let with = |bulbs: Value| lamp(json!({"room": "hall", "bulbs": bulbs}));
        let old = with(json!([{"watts": 1, "odd": 1}]));
        assert!(strictly(&with(json!([{"watts": 2}, {"watts": 1, "odd": 1}])), Some(&old)).is_ok());
        let said = strictly(&with(json!([{"watts": 2}, {"watts": 1, "new": 1}])), Some(&old)).err().unwrap();
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
        let start = Instant::now();
        assert!(strictly(&new, Some(&new)).is_ok());
        let said = strictly(&new, Some(&old)).err().unwrap();
        println!("compared in {:?}", start.elapsed());
        assert!(
            said.starts_with("unknown field \"spec.b000000\", unknown field \"spec.b000001\", "),
            "{said}"
        );
        assert!(said.ends_with("unknown field \"spec.b000019\" and 149980 more"), "{said}");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn a_name_as_long_as_a_client_likes_is_not_repeated_for_all_that_is_below_it() {
        let long = "k".repeat(700_000);
        let mut bulb: Map<_, _> = (0..100_000).map(|n| (format!("f{n:06}"), json!(1))).collect();
        bulb.insert("watts".into(), json!(1));
        let said = refusal(json!({"room": "hall", "tags": {long: bulb}}));
        assert!(said.starts_with(&format!("unknown field \"spec.tags.{}....f000000\", ", "k".repeat(SHOWN))));
        assert!(said.ends_with(" and 99980 more"));
        assert!(said.len() < 10_000, "{}", said.len());
    }
}
