//! The field manager that has changed a field, from `managedFields`.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::field::{Field, Step};
use crate::shallow::decode_value;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    manager: Option<String>,
    operation: Option<String>,
    subresource: Option<String>,
    /// In RFC 3339, always in UTC, so the texts are ordered like the times.
    time: Option<String>,
    fields_v1: Option<Map<String, Value>>,
}

/// The fields that a manager owns in a state.
pub(super) struct OwnedFields(Vec<Map<String, Value>>);

impl OwnedFields {
    /// `None` if the `managedFields` have no entries, as after somebody has cleared them.
    pub(super) fn decode(managed_fields: &str, manager: &str) -> Option<Self> {
        let entries =
            decode_value::<Vec<Entry>>(managed_fields).ok().filter(|entries| !entries.is_empty())?;
        let own = entries.into_iter().filter(|entry| entry.manager.as_deref() == Some(manager));
        Some(Self(own.filter_map(|entry| entry.fields_v1).collect()))
    }

    /// Returns true if the manager owns the field, or a part of it. In a list with another order it may own either item.
    pub(super) fn contain(&self, path: &[Step]) -> bool {
        let is_key = |key: &str, items: &[Value; 2]| items.iter().any(|item| is_key_of(key, item));
        self.0.iter().any(|fields| fields_at(fields, path, is_key).is_some())
    }

    /// Returns the key of an item of the list at this path, such as `{"name": "web"}`. `None` if the manager does not own the
    /// item by a key.
    pub(super) fn key_of_item(&self, list: &[Step], item: &Value) -> Option<Map<String, Value>> {
        let is_key = |key: &str, items: &[Value; 2]| is_key_of(key, &items[1]);
        let items = self.0.iter().filter_map(|fields| fields_at(fields, list, is_key)).flat_map(Map::keys);
        items.filter(|key| is_key_of(key, item)).find_map(|key| decode_key(key))
    }
}

/// The client that has changed a field before it was restored.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rival {
    /// Another field manager.
    Manager(String),
    /// Another client with the field manager that has restored the field.
    Namesake(String),
}

/// The client that has set the field before it was restored. The states are the `managedFields` after the own write
/// before that, after the change, and after the field was restored.
///
/// A manager that owns the field in the changed state has set it. A removal leaves no owner: then it is the only manager
/// that has written since the own write, if its write has left an entry. `None` if that is not known either.
pub(super) fn rival_of(states: [Option<&str>; 3], field: &Field) -> Option<Rival> {
    let [before, theirs, ours] =
        states.map(|text| text.map(|text| decode_value::<Vec<Entry>>(text).unwrap_or_default()));
    let (theirs, ours) = (theirs?, ours.unwrap_or_default());
    let is_owner = |entry: &&Entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(fields, &field.path));
    let own: BTreeSet<_> =
        ours.iter().filter(is_owner).filter_map(|entry| entry.manager.as_deref()).collect();
    let rival = |manager: &str| match own.contains(manager) {
        true => Rival::Namesake(manager.into()),
        false => Rival::Manager(manager.into()),
    };
    let is_own = |entry: &&Entry| entry.manager.as_deref().is_some_and(|manager| own.contains(manager));
    let (own_owners, owners): (Vec<_>, Vec<_>) = theirs.iter().filter(is_owner).partition(is_own);
    let last = owners.into_iter().max_by_key(|entry| &entry.time).or(own_owners.into_iter().next());
    if let Some(entry) = last {
        return entry.manager.as_deref().map(rival);
    }
    let before = before?;
    let is_same = |entry: &Entry, other: &Entry| {
        (&entry.manager, &entry.operation, &entry.subresource, &entry.time)
            == (&other.manager, &other.operation, &other.subresource, &other.time)
    };
    let is_of_status = field.path.first() == Some(&Step::Name("status".into()));
    let wrote = |entry: &&Entry| {
        (entry.subresource.as_deref() == Some("status")) == is_of_status
            && !before.iter().any(|other| is_same(entry, other))
    };
    let wrote: BTreeSet<_> =
        theirs.iter().filter(wrote).filter_map(|entry| entry.manager.as_deref()).collect();
    if wrote.len() == 1 { wrote.into_iter().next().map(rival) } else { None }
}

/// Returns true if the fields of a manager contain exactly this path, or a list or map above it that is managed as a
/// whole.
fn owns(fields: &Map<String, Value>, path: &[Step]) -> bool {
    let is_key = |key: &str, items: &[Value; 2]| items.iter().all(|item| is_key_of(key, item));
    fields_at(fields, path, is_key).is_some_and(Map::is_empty)
}

/// The fields of a manager that are below this path: none if it owns exactly this path, or a list or map above it that is
/// managed as a whole. `is_key` returns true for the key of an item of a list in two states.
fn fields_at<'a>(
    fields: &'a Map<String, Value>,
    path: &[Step],
    is_key: impl Fn(&str, &[Value; 2]) -> bool,
) -> Option<&'a Map<String, Value>> {
    let mut fields = fields;
    for step in path {
        let below = match step {
            Step::Name(name) => fields.get(&format!("f:{name}")),
            Step::Item(_, items) => fields.iter().find(|(key, _)| is_key(key, items)).map(|(_, below)| below),
        };
        fields = below?.as_object()?;
        if fields.is_empty() {
            break;
        }
    }
    Some(fields)
}

/// Returns true if a key of `managedFields`, such as `k:{"name":"web"}` or `v:"example.com/a"`, is that of this item.
fn is_key_of(key: &str, item: &Value) -> bool {
    if let Some(value) = key.strip_prefix("v:") {
        return serde_json::from_str::<Value>(value).is_ok_and(|value| value == *item);
    }
    decode_key(key).is_some_and(|key| key.iter().all(|(name, value)| item.get(name) == Some(value)))
}

/// Decodes a key of `managedFields` such as `k:{"name":"web"}`.
fn decode_key(key: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(key.strip_prefix("k:")?).ok()
}
