//! Tells whether applying a child has reverted the change of another client.

use reknit_apis::equality::{Place, has_set_fields};
use serde_json::Value;

/// Returns true if an applied value differs between the states before and after it was applied.
///
/// The items of other clients in a list do not count. They are known by the length of the list afterwards: one with more items
/// than were applied is merged by key. In a list of the applied items alone, others were removed.
pub(super) fn reverts_others(applied: &Value, before: &Value, after: &Value) -> bool {
    differs(Place::default(), applied, before, after)
}

fn differs(place: Place, applied: &Value, before: &Value, after: &Value) -> bool {
    match (applied, before, after) {
        (Value::Object(applied), Value::Object(_), Value::Object(_)) => applied
            .iter()
            .any(|(name, applied)| differs(place.field(name), applied, &before[name], &after[name])),
        (Value::Array(applied), Value::Array(before), Value::Array(after)) if after.len() > applied.len() => {
            let has = |items: &[Value], applied| items.iter().any(|item| has_set_fields(item, applied));
            applied.iter().any(|applied| has(after, applied) && !has(before, applied))
        }
        (Value::Array(applied), Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            let mut items = applied.iter().zip(before).zip(after);
            items.any(|((applied, before), after)| differs(place, applied, before, after))
        }
        _ => !place.are_equal(before, after),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_that_another_client_adds_to_a_list_beside_the_applied_ones_are_not_restored() {
        let (web, log) = (json!({"name": "web", "image": "a"}), json!({"name": "log", "image": "b"}));
        let (other, defaulted) = (json!({"name": "other"}), json!({"name": "web", "image": "a", "port": 1}));
        let changed = json!({"name": "web", "image": "x", "port": 1});
        let (ours, reversed) = (json!([web, log]), json!([log, web]));
        let cases = [
            (json!([defaulted, log]), json!([defaulted, log, other]), false, "another item is new"),
            (json!([other, defaulted, log]), json!([defaulted, log, other, other]), false, "two are"),
            (
                json!([defaulted, log, {"name": "other", "image": "c"}]),
                json!([web, log, other]),
                false,
                "it changed",
            ),
            (reversed, json!([web, log, other]), false, "the order differs"),
            (
                json!([changed, log, other]),
                json!([defaulted, log, other]),
                true,
                "an applied item was changed",
            ),
            (json!([log, other]), json!([defaulted, log, other]), true, "an applied item was removed"),
            (json!([defaulted, log, other]), json!([defaulted, log]), true, "another item was removed"),
            (json!([changed, log]), json!([defaulted, log]), true, "an item was changed"),
            (json!([web, log]), json!([defaulted, log]), false, "a field that is not applied differs"),
            (Value::Null, json!([web, log]), true, "the list was removed"),
        ];
        for (before, after, expected, what) in cases {
            let [applied, before, after] =
                [&ours, &before, &after].map(|containers| json!({"spec": {"containers": containers}}));
            assert_eq!(reverts_others(&applied, &before, &after), expected, "{what}");
        }
    }
}
