//! The fields that a write has restored.

use std::{borrow::Cow, collections::BTreeSet};

use kube::discovery::ApiResource;
use serde_json::Value;

use crate::{
    object::{Object, RawObject},
    shallow::decode_value,
};

/// A step of the path of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Name(String),
    /// An item of a list, in the state in between and in the last one.
    Item(usize, [Value; 2]),
}

impl Step {
    /// The segment of a JSON pointer.
    pub(super) fn segment(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Item(index, _) => index.to_string(),
        }
    }
}

/// A field that has the same value in two states, and another one in a state in between.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    pub(super) path: Vec<Step>,
    /// The value in between, and the restored one. `None` if the field is absent.
    pub(super) theirs: Option<Value>,
    pub(super) ours: Option<Value>,
}

/// The fields that have the same value in the first and in the last of three states of an object, and another one in
/// the second. Those outside the metadata come first. The hash of what `Owned::apply` has applied is only among them if
/// nothing else is.
pub(super) fn restored_fields(kind: &ApiResource, states: [&Object; 3]) -> Vec<Field> {
    let texts = states.map(|state| state.to_json(kind).ok());
    let [Some(before), Some(between), Some(after)] = &texts else { return Vec::new() };
    let raws = [before, between, after].map(|text| RawObject::scan_text(text).ok());
    let [Some(before), Some(between), Some(after)] = &raws else { return Vec::new() };
    let mut found = Vec::new();
    let parts = [before.rest(), between.rest(), after.rest()];
    collect_restored(parts, &mut Vec::new(), &mut found);
    let parts = [before.rest_of_metadata(), between.rest_of_metadata(), after.rest_of_metadata()];
    collect_restored(parts, &mut vec![Step::Name("metadata".into())], &mut found);
    let (hashes, fields): (Vec<_>, Vec<_>) = found.into_iter().partition(Field::is_hash);
    if fields.is_empty() { hashes } else { fields }
}

impl Field {
    fn is_hash(&self) -> bool {
        self.path.last() == Some(&Step::Name("reknit.dev/applied".into()))
    }
}

/// Compares the parts of three states as they are written, and decodes those that differ.
fn collect_restored(parts: [&[(Cow<'_, str>, &str)]; 3], path: &mut Vec<Step>, found: &mut Vec<Field>) {
    let names: BTreeSet<_> = parts.iter().flat_map(|parts| parts.iter().map(|(name, _)| &**name)).collect();
    for name in names {
        let texts = parts.map(|parts| parts.iter().find(|(other, _)| other == name).map(|(_, text)| *text));
        let [before, between, after] = texts;
        if before == between || between == after {
            continue;
        }
        let [before, between, after] =
            texts.map(|text| text.and_then(|text| decode_value::<Value>(text).ok()));
        path.push(Step::Name(name.into()));
        compare([before.as_ref(), between.as_ref(), after.as_ref()], path, found);
        path.pop();
    }
}

fn compare(states: [Option<&Value>; 3], path: &mut Vec<Step>, found: &mut Vec<Field>) {
    let [before, between, after] = states;
    if before == between || between == after {
        return;
    }
    match states {
        [Some(Value::Object(before)), Some(Value::Object(between)), Some(Value::Object(after))] => {
            let names: BTreeSet<_> = between.keys().chain(after.keys()).collect();
            for name in names {
                path.push(Step::Name(name.clone()));
                compare([before.get(name), between.get(name), after.get(name)], path, found);
                path.pop();
            }
        }
        [Some(Value::Array(before)), Some(Value::Array(between)), Some(Value::Array(after))]
            if before.len() == between.len() && between.len() == after.len() =>
        {
            for (n, item) in between.iter().enumerate() {
                path.push(Step::Item(n, [item.clone(), after[n].clone()]));
                compare([before.get(n), Some(item), after.get(n)], path, found);
                path.pop();
            }
        }
        _ if before == after => {
            found.push(Field { path: path.clone(), theirs: between.cloned(), ours: after.cloned() });
        }
        _ => {}
    }
}
