//! The unknown fields of an object, and their paths.

use std::{
    collections::{HashSet, hash_map::RandomState},
    fmt,
    hash::BuildHasher,
};

use reknit_apis::{CauseType, FieldError};
use serde_json::{Map, Value};

use super::denial::Denial;

/// The maximum number of unknown fields that an error names.
const MAX_NAMED_FIELDS: usize = 20;
/// The maximum number of characters of a field's name that an error shows.
const MAX_SHOWN_CHARS: usize = 200;

/// The unknown fields of an object: their number, and the paths of the first [`MAX_NAMED_FIELDS`].
#[derive(Default)]
pub(super) struct UnknownFields {
    paths: Vec<String>,
    count: usize,
}

impl UnknownFields {
    /// Finds the unknown fields of a value, at any depth.
    pub(super) fn of(value: &Value, known: KnownFields<'_>) -> Self {
        let (hasher, mut unknown) = (RandomState::new(), Self::default());
        find_unknown_fields(&Path::root(&hasher), value, known, &mut |path| unknown.add(path));
        unknown
    }

    /// Finds the unknown fields of a value that are not also unknown fields of the old value.
    pub(super) fn beyond_old(
        value: &Value,
        known: KnownFields<'_>,
        old: &Value,
        known_in_old: KnownFields<'_>,
    ) -> Self {
        let (hasher, mut unknown_in_old, mut unknown) = (RandomState::new(), HashSet::new(), Self::default());
        find_unknown_fields(&Path::root(&hasher), old, known_in_old, &mut |path| {
            unknown_in_old.insert(path.hash);
        });
        find_unknown_fields(&Path::root(&hasher), value, known, &mut |path| {
            if !unknown_in_old.contains(&path.hash) {
                unknown.add(path);
            }
        });
        unknown
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, path: &Path<'_>) {
        self.count += 1;
        if self.count <= MAX_NAMED_FIELDS {
            self.paths.push(path.to_string());
        }
    }
}

impl From<UnknownFields> for Denial {
    fn from(unknown: UnknownFields) -> Self {
        let names = unknown.paths.iter().map(|path| format!("unknown field {path:?}"));
        let mut message = names.collect::<Vec<_>>().join(", ");
        if unknown.count > unknown.paths.len() {
            message += &format!(" and {} more", unknown.count - unknown.paths.len());
        }
        Self::new(message, FieldError::generic("unknown field", unknown.paths).cause(CauseType::Forbidden))
    }
}

/// Calls `report` with the path of each unknown field of a value, at any depth.
fn find_unknown_fields(
    path: &Path<'_>,
    value: &Value,
    known: KnownFields<'_>,
    report: &mut dyn FnMut(&Path<'_>),
) {
    let is_root = matches!(path.step, Step::Root);
    match value {
        _ if known.schema.is_null() => {}
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = path.child(Step::Field(key));
                match known.field(key) {
                    _ if is_root && matches!(&**key, "apiVersion" | "kind" | "metadata") => {}
                    Some(known) => find_unknown_fields(&path, value, known, report),
                    None => report(&path),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                find_unknown_fields(
                    &path.child(Step::Item(index)),
                    item,
                    known.item(index, items.len()),
                    report,
                );
            }
        }
        _ => {}
    }
}

/// The two sources of the known fields of a value.
#[derive(Clone, Copy)]
pub(super) struct KnownFields<'a> {
    /// The value after decoding and encoding.
    pub(super) encoded: &'a Value,
    /// The schema of the value. Null allows everything.
    pub(super) schema: &'a Value,
}

impl<'a> KnownFields<'a> {
    fn field(self, key: &str) -> Option<Self> {
        let encoded = self.encoded.get(key);
        let schema = field_schema(self.schema, key).or(encoded.map(|_| &Value::Null))?;
        Some(Self { encoded: encoded.unwrap_or(&Value::Null), schema })
    }

    fn item(self, index: usize, count: usize) -> Self {
        let encoded = self.encoded.as_array().filter(|encoded| encoded.len() == count);
        let encoded = encoded.and_then(|encoded| encoded.get(index)).unwrap_or(&Value::Null);
        Self { encoded, schema: &self.schema["items"] }
    }
}

/// Returns the schema of a field, or `None` if the schema does not allow the field.
pub(crate) fn field_schema<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
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

/// Returns true if a schema without properties allows any field, and false if it allows none.
fn is_open(schema: &Value) -> bool {
    schema.get("type").is_none()
        || schema["x-kubernetes-preserve-unknown-fields"] == true
        || schema["x-kubernetes-embedded-resource"] == true
}

/// The path of a field. It is formatted only for the few paths that an error names, since clients may send very long
/// keys.
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
    hasher: &'a RandomState,
    /// The hash of the path without list indexes, since an inserted item shifts the indexes of later items.
    hash: u64,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Item(usize),
}

impl<'a> Path<'a> {
    fn root(hasher: &'a RandomState) -> Self {
        Self { parent: None, step: Step::Root, hasher, hash: 0 }
    }

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
                match name.char_indices().nth(MAX_SHOWN_CHARS) {
                    Some((end, _)) => write!(f, "{}...", &name[..end]),
                    None => f.write_str(name),
                }
            }
            Step::Root => Ok(()),
        }
    }
}
