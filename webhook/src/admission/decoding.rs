//! Strict decoding of objects: unknown fields are errors that name their paths.

use std::{
    borrow::Cow,
    collections::{HashSet, hash_map::RandomState},
    fmt,
    hash::BuildHasher,
    marker::PhantomData,
};

use kube::CustomResourceExt;
use reknit_apis::{FieldError, Kind};
use serde_json::{Map, Value};

use super::review::Change;

/// The number of unknown fields that an error names.
const NAMED: usize = 20;
/// The number of characters of a field's name that an error shows.
const SHOWN: usize = 200;

/// A strict decoder of one Kind.
///
/// A field is unknown if it is lost when the object is decoded and encoded again, and the schema of the Kind does not have it
/// either. The first test alone would also find an empty list that is not encoded; the second alone would find the fields that
/// a flattened map takes.
pub(crate) struct Decoder<K> {
    schema: Value,
    /// Set if the status is a subresource. Otherwise it is as much a part of the object as its spec.
    has_status: bool,
    kind: PhantomData<fn() -> K>,
}

/// A decoded object, and the JSON that its Kind writes for it.
pub(crate) struct Decoded<K> {
    pub(crate) object: K,
    pub(crate) written: Value,
}

impl<K: Kind> Decoded<K> {
    pub(crate) fn new(object: K) -> Result<Self, String> {
        let written = serde_json::to_value(&object).map_err(|error| error.to_string())?;
        Ok(Self { object, written })
    }
}

/// Decodes an object and ignores unknown fields.
pub(crate) fn decode<K: Kind>(value: &Value) -> Result<K, String> {
    serde_path_to_error::deserialize(value).map_err(|error| describe(&error))
}

/// Decodes an object, without its status if that alone cannot be decoded and `drops_status` is set. Returns the JSON that was
/// decoded, too.
pub(crate) fn decode_leniently<K: Kind>(
    value: &Value,
    drops_status: bool,
) -> Result<(K, Cow<'_, Value>), String> {
    let error = match decode(value) {
        Ok(object) => return Ok((object, Cow::Borrowed(value))),
        Err(error) => error,
    };
    let mut rest = value.clone();
    match rest.as_object_mut().filter(|_| drops_status).and_then(|fields| fields.remove("status")) {
        Some(_) => Ok((decode(&rest).map_err(|_| error)?, Cow::Owned(rest))),
        None => Err(error),
    }
}

impl<K: Kind + CustomResourceExt> Decoder<K> {
    pub(crate) fn new() -> Self {
        // A definition always serializes; without a schema, every field is known.
        let definition = serde_json::to_value(K::crd()).unwrap_or_default();
        let mut versions = definition["spec"]["versions"].as_array().into_iter().flatten();
        let version = versions.find(|version| version["name"] == *K::version(&())).unwrap_or(&Value::Null);
        let schema = version["schema"]["openAPIV3Schema"].clone();
        Self { schema, has_status: version["subresources"]["status"].is_object(), kind: PhantomData }
    }

    /// Decodes the old object, if there is one and it can be decoded: an undecodable object must not prevent its replacement or
    /// deletion.
    pub(crate) fn old_object(&self, change: &Change) -> Option<K> {
        Some(decode_leniently(change.old.as_ref()?, self.has_status).ok()?.0)
    }

    /// Decodes the new object and refuses unknown fields, except for those that the old object has: such an object must be able
    /// to lose its finalizers.
    ///
    /// An undecodable status is left out if it is a subresource and the request is for the object itself, since the API server
    /// then discards it.
    pub(crate) fn new_object(&self, change: &Change) -> Result<Decoded<K>, String> {
        let object = change.new_object()?;
        let drops_status = self.has_status && change.request.subresource.is_none();
        decode_leniently(object, drops_status)
            .and_then(|(object, value)| self.without_unknown_fields(object, &value, change))
            .map_err(|reason| format!("cannot decode incoming new object: {reason}"))
    }

    fn without_unknown_fields(
        &self,
        object: K,
        value: &Value,
        change: &Change,
    ) -> Result<Decoded<K>, String> {
        let decoded = Decoded::new(object)?;
        let (hasher, mut unknown) = (RandomState::new(), UnknownFields::default());
        let root = Path { parent: None, step: Step::Root, hasher: &hasher, hash: 0 };
        let known = Known { written: &decoded.written, schema: &self.schema };
        find_unknown(&root, value, known, &mut |path| unknown.add(path));
        if let Some(old) = change.old.as_ref().filter(|_| unknown.count > 0) {
            let written = self.old_object(change).and_then(|old| Some(Decoded::new(old).ok()?.written));
            let known_of_old = Known { written: written.as_ref().unwrap_or(&Value::Null), ..known };
            let mut before = HashSet::new();
            find_unknown(&root, old, known_of_old, &mut |path| {
                before.insert(path.hash);
            });
            unknown = UnknownFields::default();
            find_unknown(&root, value, known, &mut |path| {
                if !before.contains(&path.hash) {
                    unknown.add(path);
                }
            });
        }
        if unknown.count == 0 { Ok(decoded) } else { Err(unknown.message()) }
    }
}

/// Reports the fields of an object, and of everything in it, that its Kind does not know.
fn find_unknown(path: &Path<'_>, value: &Value, known: Known<'_>, report: &mut dyn FnMut(&Path<'_>)) {
    let is_root = matches!(path.step, Step::Root);
    match value {
        _ if known.schema.is_null() => {}
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = path.child(Step::Field(key));
                match known.field(key) {
                    _ if is_root && matches!(&**key, "apiVersion" | "kind" | "metadata") => {}
                    Some(known) => find_unknown(&path, value, known, report),
                    None => report(&path),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                find_unknown(&path.child(Step::Item(index)), item, known.item(index, items.len()), report);
            }
        }
        _ => {}
    }
}

/// The two sources of the fields that a Kind knows of a value.
#[derive(Clone, Copy)]
struct Known<'a> {
    /// The JSON that the Kind writes for the value.
    written: &'a Value,
    /// The schema of the value. Null allows everything.
    schema: &'a Value,
}

impl<'a> Known<'a> {
    fn field(self, key: &str) -> Option<Self> {
        let written = self.written.get(key);
        let schema = field_schema(self.schema, key).or(written.map(|_| &Value::Null))?;
        Some(Self { written: written.unwrap_or(&Value::Null), schema })
    }

    fn item(self, index: usize, count: usize) -> Self {
        let written = self.written.as_array().filter(|written| written.len() == count);
        let written = written.and_then(|written| written.get(index)).unwrap_or(&Value::Null);
        Self { written, schema: &self.schema["items"] }
    }
}

fn field_schema<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    let properties = schema.get("properties").and_then(Value::as_object);
    if let Some(known) = properties.and_then(|properties| properties.get(key)) {
        return Some(known);
    }
    match &schema["additionalProperties"] {
        values @ Value::Object(_) => Some(values),
        Value::Bool(true) => Some(&Value::Null),
        _ if properties.is_none_or(Map::is_empty) && is_open(schema) => Some(&Value::Null),
        _ => None,
    }
}

/// Returns true if a schema without properties allows any field. Otherwise the object has no fields.
fn is_open(schema: &Value) -> bool {
    schema.get("type").is_none()
        || schema["x-kubernetes-preserve-unknown-fields"] == true
        || schema["x-kubernetes-embedded-resource"] == true
}

/// The path of a field. Only the few paths that an error names are formatted: clients choose how long the keys of maps are.
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
    hasher: &'a RandomState,
    /// The hash of the path without list indexes, since an inserted item moves those behind it.
    hash: u64,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Item(usize),
}

impl<'a> Path<'a> {
    fn child(&'a self, step: Step<'a>) -> Self {
        let hash = match step {
            Step::Field(name) => self.hasher.hash_one((self.hash, name)),
            Step::Item(_) | Step::Root => self.hasher.hash_one(self.hash),
        };
        Self { parent: Some(self), step, hasher: self.hasher, hash }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parent) = self.parent else { return Ok(()) };
        parent.fmt(f)?;
        match self.step {
            Step::Item(index) => write!(f, "[{index}]"),
            Step::Field(name) => {
                f.write_str(if parent.parent.is_some() { "." } else { "" })?;
                match name.char_indices().nth(SHOWN) {
                    Some((end, _)) => write!(f, "{}...", &name[..end]),
                    None => f.write_str(name),
                }
            }
            Step::Root => Ok(()),
        }
    }
}

/// The unknown fields of an object: the number of all, and a message for each of the first few.
#[derive(Default)]
struct UnknownFields {
    messages: Vec<String>,
    count: usize,
}

impl UnknownFields {
    fn add(&mut self, path: &Path<'_>) {
        self.count += 1;
        if self.count <= NAMED {
            self.messages.push(format!("unknown field {:?}", path.to_string()));
        }
    }

    fn message(&self) -> String {
        let named = self.messages.join(", ");
        match self.count - self.messages.len() {
            0 => named,
            more => format!("{named} and {more} more"),
        }
    }
}

/// Describes a decoding error, in Knative's words for missing fields.
fn describe(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let (path, text) = (error.path().to_string(), error.inner().to_string());
    let field = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    match (field, &*path) {
        (Some(field), ".") => FieldError::missing([field]).to_string(),
        (Some(field), path) => FieldError::missing([field]).via_field(path).to_string(),
        (None, ".") => text,
        (None, path) => format!("{path}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        time::{Duration, Instant},
    };

    use reknit_apis::kind;
    use reknit_apis::{Operation, Request};
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

    kind!(Lamp {});

    fn lamp(spec: Value) -> Value {
        json!({"apiVersion": "demo.reknit.dev/v1", "kind": "Lamp", "metadata": {"name": "x", "odd": 1}, "spec": spec})
    }

    fn strictly(value: &Value, old: Option<&Value>) -> Result<Decoded<Lamp>, String> {
        let (object, old) = (Some(value.clone()), old.cloned());
        let decoded =
            Decoder::new().new_object(&Change { request: Request::new(Operation::Update), object, old });
        decoded.map_err(|reason| reason.replace("cannot decode incoming new object: ", ""))
    }

    fn refusal(spec: Value) -> String {
        strictly(&lamp(spec), None).err().unwrap_or_default()
    }

    #[test]
    fn known_fields_are_decoded_and_empty_values_are_not_unknown() {
        let spec = json!({
            "room": "hall", "bulbs": [], "shade": null, "source": {"volts": 230}, "tags": {"a": {"watts": 1}},
            "extra": {"anything": {"goes": 1}},
        });
        assert_eq!(refusal(spec), "");
    }

    #[test]
    fn unknown_fields_are_named_by_their_paths() {
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
    fn an_unknown_field_beside_the_spec_is_named() {
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
    fn unknown_fields_of_the_old_object_are_allowed() {
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
    fn unknown_fields_of_the_old_object_may_move_within_a_list() {
        let with = |bulbs: Value| lamp(json!({"room": "hall", "bulbs": bulbs}));
        let old = with(json!([{"watts": 1, "odd": 1}]));
        assert!(strictly(&with(json!([{"watts": 2}, {"watts": 1, "odd": 1}])), Some(&old)).is_ok());
        let said = strictly(&with(json!([{"watts": 2}, {"watts": 1, "new": 1}])), Some(&old)).err().unwrap();
        assert_eq!(said, "unknown field \"spec.bulbs[1].new\"");
    }

    #[test]
    fn many_unknown_fields_are_found_in_time_and_counted() {
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
    fn a_very_long_name_is_shortened_in_the_message() {
        let long = "k".repeat(700_000);
        let mut bulb: Map<_, _> = (0..100_000).map(|n| (format!("f{n:06}"), json!(1))).collect();
        bulb.insert("watts".into(), json!(1));
        let said = refusal(json!({"room": "hall", "tags": {long: bulb}}));
        assert!(said.starts_with(&format!("unknown field \"spec.tags.{}....f000000\", ", "k".repeat(SHOWN))));
        assert!(said.ends_with(" and 99980 more"));
        assert!(said.len() < 10_000, "{}", said.len());
    }
}
