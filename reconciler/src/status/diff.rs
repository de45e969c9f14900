//! What has to be merged into one JSON value to make another of it.

use serde_json::{Map, Value};

/// The merge patch (RFC 7396) from `before` to `after`; none where they are equal.
///
/// It names only fields that `before` or `after` has: what a newer version keeps beside them stays as it is, but
/// for lists, which are replaced whole.
pub(crate) fn diff(before: &Value, after: Value) -> Option<Value> {
    if *before == after {
        return None;
    }
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => Some(Value::Object(fields(before, after))),
        (_, after) => Some(after),
    }
}

fn fields(before: &Map<String, Value>, after: Map<String, Value>) -> Map<String, Value> {
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    let gone: Vec<_> = gone.map(|name| (name.clone(), Value::Null)).collect();
    let changed = after.into_iter().filter_map(|(name, new)| {
        let change = match before.get(&name) {
            Some(old) => diff(old, new),
            None => Some(new),
        };
        Some((name, change?))
    });
    changed.chain(gone).collect()
}

/// Merges the patch into the value, as the API server does.
pub(crate) fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Value::Object(fields) = into else { return };
    for (name, change) in patch {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), change);
        }
    }
}

/// Whether the patch changes a value that is no longer what it was when the patch was made.
pub(crate) fn conflicts_with(patch: &Value, before: Option<&Value>, now: Option<&Value>) -> bool {
    match patch {
        Value::Object(changes) => changes.iter().any(|(name, change)| {
            conflicts_with(
                change,
                before.and_then(|before| before.get(name)),
                now.and_then(|now| now.get(name)),
            )
        }),
        _ => before != now,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_diff_holds_only_what_differs() {
        let before = json!({"a": 1, "b": {"c": 2, "d": 3}, "gone": 4});
        let after = json!({"a": 1, "b": {"c": 2, "d": 4}, "new": {"x": 1}});
        assert_eq!(diff(&before, after), Some(json!({"b": {"d": 4}, "new": {"x": 1}, "gone": null})));
        assert_eq!(diff(&before, before.clone()), None);
    }

    #[test]
    fn a_diff_merged_into_what_it_was_computed_from_makes_the_other() {
        let values = [
            json!({}),
            json!({"a": [1, 2]}),
            json!({"a": [2]}),
            json!({"a": {"b": 1}}),
            json!({"a": {"b": {"c": 1}}, "d": "e"}),
            json!({"a": "text", "d": false}),
        ];
        for before in &values {
            for after in &values {
                let mut made = before.clone();
                merge(&mut made, &diff(before, after.clone()).unwrap_or_else(|| json!({})));
                assert_eq!(&made, after, "from {before}");
            }
        }
    }

    #[test]
    fn what_neither_side_knows_survives_a_merge() {
        let mut stored = json!({"known": 1, "newer": {"field": true}});
        merge(&mut stored, &diff(&json!({"known": 1}), json!({"known": 2})).unwrap());
        assert_eq!(stored, json!({"known": 2, "newer": {"field": true}}));
    }

    #[test]
    fn a_patch_conflicts_with_what_changed_at_one_of_its_own_paths_only() {
        let before = json!({"a": 1, "b": {"c": [1], "d": 2}});
        let patch = json!({"b": {"c": [1, 2]}, "new": {"x": 1}});
        let conflicts_with = |now: Value| conflicts_with(&patch, Some(&before), Some(&now));
        assert!(!conflicts_with(before.clone()));
        assert!(!conflicts_with(json!({"a": 5, "b": {"c": [1], "d": 6}, "other": 7})));
        assert!(conflicts_with(json!({"a": 1, "b": {"c": [1, 3], "d": 2}})), "the list is another");
        assert!(conflicts_with(json!({"a": 1, "b": {"c": [1], "d": 2}, "new": {"x": 2}})), "added by both");
        assert!(conflicts_with(json!({"a": 1})), "gone");
    }
}
