//! JSON merge patches (RFC 7396).

use reknit_apis::{equality::Place, to_json};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Result;

/// The merge patch (RFC 7396) from one state of an object to another; `None` if they are equal.
///
/// Values of [the same meaning](reknit_apis::equality), such as `1024Mi` and `1Gi` of memory, are equal. An unset
/// `Option` is an absent field, and so is a null in a field of any form, since a merge patch cannot store it.
///
/// Send it with kube's `Patch::Merge`. Fields in neither state are kept, and lists are replaced as a whole: items of a changed
/// list lose the fields that their type does not have, such as those of a newer API server, unless the states are
/// `DynamicObject`s or JSON. The patch has the resourceVersion only if the states differ in it, so add
/// `metadata.resourceVersion` if the patch must not apply to a newer object.
///
/// # Errors
///
/// Returns an error if a state cannot be serialized.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use reknit_reconciler::merge_patch;
/// use serde_json::json;
///
/// let before = ConfigMap { data: Some([("a".into(), "1".into())].into()), ..ConfigMap::default() };
/// let after = ConfigMap { data: Some([("b".into(), "2".into())].into()), ..ConfigMap::default() };
/// assert_eq!(merge_patch(&before, &after)?, Some(json!({"data": {"a": null, "b": "2"}})));
/// assert_eq!(merge_patch(&after, &after)?, None);
/// # Ok::<_, reknit_reconciler::Error>(())
/// ```
pub fn merge_patch(before: &impl Serialize, after: &impl Serialize) -> Result<Option<Value>> {
    Ok(diff(&to_json(before)?, to_json(after)?))
}

/// The merge patch from `before` to `after`; `None` if they are equal.
///
/// It contains only fields of `before` or `after`. Other fields, which a newer version of the type may have stored, are
/// kept. Lists are replaced as a whole.
pub(crate) fn diff(before: &Value, after: Value) -> Option<Value> {
    diff_at(Place::default(), before, after)
}

fn diff_at(place: Place, before: &Value, after: Value) -> Option<Value> {
    if place.are_equal_once_merged(before, &after) {
        return None;
    }
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            Some(Value::Object(diff_fields(place, before, after)))
        }
        (_, after) => Some(after),
    }
}

fn diff_fields(place: Place, before: &Map<String, Value>, after: Map<String, Value>) -> Map<String, Value> {
    let is_removed = |(name, value): &(&String, &Value)| {
        !after.contains_key(*name) && !place.field(name).are_equal_once_merged(value, &Value::Null)
    };
    let removed: Vec<_> =
        before.iter().filter(is_removed).map(|(name, _)| (name.clone(), Value::Null)).collect();
    let changed = after.into_iter().filter_map(|(name, new)| {
        let change = diff_at(place.field(&name), before.get(&name).unwrap_or(&Value::Null), new)?;
        Some((name, change))
    });
    changed.chain(removed).collect()
}

/// The merge patch that makes `after` of `before`, whatever `before` contains. Unlike [`diff`], it keeps no other field and
/// takes no two values for equal.
pub(super) fn replacement(before: &Value, mut after: Value) -> Value {
    if let (Value::Object(before), Value::Object(after)) = (before, &mut after) {
        for (name, value) in before {
            let new = after.remove(name);
            after.insert(name.clone(), new.map_or(Value::Null, |new| replacement(value, new)));
        }
    }
    after
}

/// Returns true if merging the patch into this value would change nothing.
pub(super) fn has_merged(value: &Value, patch: &Value) -> bool {
    has_merged_at(Place::default(), value, patch)
}

fn has_merged_at(place: Place, value: &Value, patch: &Value) -> bool {
    let (Value::Object(changes), Value::Object(fields)) = (patch, value) else {
        return place.are_equal_once_merged(value, patch);
    };
    changes.iter().all(|(name, change)| {
        has_merged_at(place.field(name), fields.get(name).unwrap_or(&Value::Null), change)
    })
}

/// Returns true if the patch changes a value that differs between `before` and `now`. The patch was computed from
/// `before`.
pub(super) fn conflicts_with(patch: &Value, before: &Value, now: &Value) -> bool {
    conflicts_at(Place::default(), patch, before, now)
}

fn conflicts_at(place: Place, patch: &Value, before: &Value, now: &Value) -> bool {
    let Value::Object(changes) = patch else { return !place.are_equal_once_merged(before, now) };
    changes.iter().any(|(name, change)| {
        let [before, now] = [before, now].map(|value| value.get(name).unwrap_or(&Value::Null));
        conflicts_at(place.field(name), change, before, now)
    })
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
    fn merging_a_diff_into_its_first_value_yields_the_second() {
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
                let mut merged = before.clone();
                json_patch::merge(&mut merged, &diff(before, after.clone()).unwrap_or_else(|| json!({})));
                assert_eq!(&merged, after, "from {before}");
            }
        }
    }

    #[test]
    fn a_null_in_a_field_of_any_form_is_written_once_and_then_stored() {
        for wanted in [
            json!({"values": {"a": null, "b": 1}}),
            json!({"values": {"inner": {"a": null}}}),
            json!({"values": [{"a": null, "b": 1}]}),
        ] {
            let patch = diff(&json!({}), wanted.clone()).unwrap();
            let mut stored = json!({});
            json_patch::merge(&mut stored, &patch);
            // The API server drops nulls in lists, too.
            if let Some(item) = stored["values"].get_mut(0) {
                item.as_object_mut().unwrap().remove("a");
            }
            assert_eq!(diff(&stored, wanted.clone()), None, "{wanted}");
            assert!(has_merged(&stored, &patch), "{wanted}");
        }
        let (some, none) = (json!({"values": {"a": 1}}), json!({"values": {"a": null}}));
        assert_eq!(diff(&some, none), Some(json!({"values": {"a": null}})));
    }

    #[test]
    fn unset_options_are_not_sent() {
        #[derive(Serialize)]
        struct Part {
            name: &'static str,
            mode: Option<bool>,
        }
        let parts = |mode| [Part { name: "a", mode }, Part { name: "b", mode: None }];
        let patch = merge_patch(&[Part { name: "a", mode: None }], &parts(None)).unwrap();
        assert_eq!(patch, Some(json!([{"name": "a"}, {"name": "b"}])));
        assert_eq!(merge_patch(&parts(Some(true))[0], &parts(None)[0]).unwrap(), Some(json!({"mode": null})));
    }

    #[test]
    fn values_of_the_same_meaning_cause_no_patch() {
        let before =
            json!({"capacity": {"memory": "1Gi"}, "load": 1, "seenTime": "2026-01-01T00:00:00Z", "gone": []});
        let mut after = json!({
            "capacity": {"memory": "1024Mi"}, "load": 1.0, "seenTime": "2026-01-01T00:00:00.000Z", "new": null,
        });
        assert_eq!(diff(&before, after.clone()), None);
        after["capacity"]["memory"] = json!("1025Mi");
        assert_eq!(diff(&before, after), Some(json!({"capacity": {"memory": "1025Mi"}})));
    }

    #[test]
    fn a_replacement_leaves_nothing_of_the_value_before() {
        let before = json!({"a": null, "b": {"c": "1", "d": 2}, "gone": {"x": 1}, "e": [1]});
        let after = json!({"b": {"c": 1}, "e": [1], "new": {"y": {}}});
        let mut merged = before.clone();
        json_patch::merge(&mut merged, &replacement(&before, after.clone()));
        assert_eq!(merged, after);
    }

    #[test]
    fn fields_that_are_in_neither_value_survive_a_merge() {
        let mut stored = json!({"known": 1, "newer": {"field": true}});
        json_patch::merge(&mut stored, &diff(&json!({"known": 1}), json!({"known": 2})).unwrap());
        assert_eq!(stored, json!({"known": 2, "newer": {"field": true}}));
    }

    #[test]
    fn a_patch_conflicts_only_with_changes_at_its_own_paths() {
        let before = json!({"a": 1, "b": {"c": [1], "d": 2}});
        let patch = json!({"b": {"c": [1, 2]}, "new": {"x": 1}});
        let conflicts_with = |now: Value| conflicts_with(&patch, &before, &now);
        assert!(!conflicts_with(before.clone()));
        assert!(!conflicts_with(json!({"a": 5, "b": {"c": [1], "d": 6}, "other": 7})));
        assert!(
            conflicts_with(json!({"a": 1, "b": {"c": [1, 3], "d": 2}})),
            "another client changed the list"
        );
        assert!(
            conflicts_with(json!({"a": 1, "b": {"c": [1], "d": 2}, "new": {"x": 2}})),
            "another client added the same field"
        );
        assert!(conflicts_with(json!({"a": 1})), "another client removed the field");
    }
}
