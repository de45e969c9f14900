//! The field manager of a field, from `managedFields`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::field::{Field, Step};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    manager: Option<String>,
    /// In RFC 3339, always in UTC, so the texts are ordered like the times.
    time: Option<String>,
    fields_v1: Option<Map<String, Value>>,
}

/// The manager that has set the field before it was restored. `theirs` and `ours` are the `managedFields` before and after
/// that. If nobody but the manager that has restored it managed the field, the field was removed or converted: then the
/// manager of the last write.
pub(super) fn rival_of(theirs: &str, ours: Option<&str>, field: &Field) -> Option<String> {
    let decode = |text| serde_json::from_str::<Vec<Entry>>(text).unwrap_or_default();
    let owns = |entry: &&Entry| entry.fields_v1.as_ref().is_some_and(|fields| contains(fields, &field.path));
    let ours = ours.map(decode).unwrap_or_default();
    let is_ours = |entry: &Entry| ours.iter().filter(owns).any(|own| own.manager == entry.manager);
    let (own_entries, others): (Vec<_>, Vec<_>) = decode(theirs).into_iter().partition(is_ours);
    let last = others.iter().filter(owns).max_by_key(|entry| &entry.time);
    let last = last.or_else(|| others.iter().max_by_key(|entry| &entry.time)).or(own_entries.last());
    last?.manager.clone()
}

/// Returns true if the fields of a manager contain this path, or a list or map above it that is managed as a whole.
fn contains(fields: &Map<String, Value>, path: &[Step]) -> bool {
    let Some((step, rest)) = path.split_first() else { return true };
    let below = match step {
        Step::Name(name) => fields.get(&format!("f:{name}")),
        Step::Item(_, item) => fields.iter().find(|(key, _)| is_key_of(key, item)).map(|(_, below)| below),
    };
    match below.and_then(Value::as_object) {
        Some(below) => below.is_empty() || contains(below, rest),
        None => false,
    }
}

/// Returns true if a key of `managedFields`, such as `k:{"name":"web"}` or `v:"example.com/a"`, is that of this item.
fn is_key_of(key: &str, item: &Value) -> bool {
    let decode = |json| serde_json::from_str::<Value>(json).ok();
    if let Some(value) = key.strip_prefix("v:") {
        return decode(value).as_ref() == Some(item);
    }
    let key = key.strip_prefix("k:").and_then(decode);
    key.as_ref()
        .and_then(Value::as_object)
        .is_some_and(|key| key.iter().all(|(name, value)| item.get(name) == Some(value)))
}
