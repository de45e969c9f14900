//! Merging of the changes to a typed object into its JSON, which keeps unknown fields.

use reknit_apis::internal::HashMap;
use serde_json::{Map, Value};

/// Applies the difference between `before` and `after` to `raw`, and keeps the fields that neither of them has.
///
/// List items that are unchanged keep their unknown fields, even if they have moved. A changed item keeps its unknown
/// fields if `after` is as long as `before` and the item that was at its index has not moved. Otherwise it cannot be
/// matched with an old item, and is replaced. If decoding dropped or added items, so that `before` and `raw` differ in
/// length, the whole list is replaced.
pub fn merge_changes(raw: &mut Value, before: &Value, after: &Value) {
    if before == after {
        return;
    }
    match (raw, before, after) {
        (Value::Object(raw), Value::Object(before), Value::Object(after)) => merge_fields(raw, before, after),
        (Value::Array(raw), Value::Array(before), Value::Array(after)) if raw.len() == before.len() => {
            merge_items(raw, before, after);
        }
        (raw, _, after) => raw.clone_from(after),
    }
}

fn merge_fields(raw: &mut Map<String, Value>, before: &Map<String, Value>, after: &Map<String, Value>) {
    raw.retain(|key, _| after.contains_key(key) || !before.contains_key(key));
    for (key, after) in after {
        match (raw.get_mut(key), before.get(key)) {
            (_, Some(before)) if before == after => {}
            (Some(raw), Some(before)) => merge_changes(raw, before, after),
            _ => {
                raw.insert(key.clone(), after.clone());
            }
        }
    }
}

fn merge_items(raw: &mut Vec<Value>, before: &[Value], after: &[Value]) {
    let mut remaining: Vec<_> = std::mem::take(raw).into_iter().map(Some).collect();
    let unchanged: Vec<_> = old_indexes(before, after)
        .into_iter()
        .map(|old_index| remaining.get_mut(old_index?)?.take())
        .collect();
    let same_length = before.len() == after.len();
    // An item that remains at this index has not moved elsewhere, so it is the one that changed.
    let mut merge_changed = |index: usize, after: &Value| {
        if !same_length {
            return None;
        }
        let (mut item, before) = (remaining.get_mut(index)?.take()?, before.get(index)?);
        merge_changes(&mut item, before, after);
        Some(item)
    };
    let merged = unchanged.into_iter().zip(after).enumerate().map(|(index, (unchanged, after))| {
        unchanged.or_else(|| merge_changed(index, after)).unwrap_or_else(|| after.clone())
    });
    raw.extend(merged);
}

/// Returns the old index of each item, or `None` if the item is new or changed.
fn old_indexes(before: &[Value], after: &[Value]) -> Vec<Option<usize>> {
    let is_unmoved = |index: usize| before.get(index).is_some_and(|before| after.get(index) == Some(before));
    let mut moved: HashMap<&Value, Vec<usize>> = HashMap::default();
    for index in (0..before.len()).rev().filter(|index| !is_unmoved(*index)) {
        moved.entry(&before[index]).or_default().push(index);
    }
    let old_index =
        |(index, after)| if is_unmoved(index) { Some(index) } else { moved.get_mut(after)?.pop() };
    after.iter().enumerate().map(old_index).collect()
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};
    use serde_json::json;

    use super::*;

    /// Merges and compares the result. Fields named `odd` are unknown to the Kind.
    #[track_caller]
    fn assert_merged(mut raw: Value, before: Value, after: Value, expected: Value) {
        merge_changes(&mut raw, &before, &after);
        assert_eq!(raw, expected);
    }

    #[test]
    fn unknown_fields_of_changed_objects_are_kept() {
        assert_merged(
            json!({"spec": {"odd": 1, "list": [{"odd": 2}]}}),
            json!({"spec": {"list": [{"n": null}], "empty": []}}),
            json!({"spec": {"list": [{"n": 3}], "empty": [], "new": {"x": 1}}}),
            json!({"spec": {"odd": 1, "list": [{"odd": 2, "n": 3}], "new": {"x": 1}}}),
        );
    }

    #[test]
    fn items_that_are_sorted_keep_their_unknown_fields() {
        assert_merged(
            json!([{"n": 2, "odd": "b"}, {"n": 3, "odd": "c"}, {"n": 1, "odd": "a"}, {"n": 2, "odd": "d"}]),
            json!([{"n": 2}, {"n": 3}, {"n": 1}, {"n": 2}]),
            json!([{"n": 1}, {"n": 2}, {"n": 2}, {"n": 3}]),
            json!([{"n": 1, "odd": "a"}, {"n": 2, "odd": "b"}, {"n": 2, "odd": "d"}, {"n": 3, "odd": "c"}]),
        );
    }

    #[test]
    fn items_beside_added_and_removed_ones_keep_their_unknown_fields() {
        let raw = json!([{"n": 1, "odd": "a"}, {"n": 2, "odd": "b"}]);
        let before = json!([{"n": 1}, {"n": 2}]);
        let assert_becomes =
            |after: Value, expected: Value| assert_merged(raw.clone(), before.clone(), after, expected);
        let (one, two) = (&raw[0], &raw[1]);
        assert_becomes(json!([{"n": 1}, {"n": 2}, {"n": 3}]), json!([one, two, {"n": 3}]));
        assert_becomes(json!([{"n": 0}, {"n": 1}, {"n": 2}]), json!([{"n": 0}, one, two]));
        assert_becomes(json!([{"n": 2}]), json!([two]));
        assert_becomes(json!([{"n": 1}, {"n": 5}, {"n": 6}]), json!([one, {"n": 5}, {"n": 6}]));
        assert_becomes(json!([]), json!([]));
    }

    #[test]
    fn many_changed_items_are_merged_quickly() {
        let items = |from: u32| (from..from + 200_000).map(|n| json!({"n": n})).collect::<Value>();
        // The processor time of this thread does not depend on the load of the machine.
        let seconds = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
        let start = seconds();
        assert_merged(items(0), items(0), items(200_000), items(200_000));
        assert!(seconds() - start < 20, "{} s", seconds() - start);
    }

    #[test]
    fn removed_fields_disappear_and_a_list_of_another_length_is_replaced() {
        assert_merged(
            json!({"gone": 1, "odd": 2, "list": [{"n": 1, "odd": 1}, {}]}),
            json!({"gone": 1, "list": [{"n": 1}]}),
            json!({"list": [{"n": 2}]}),
            json!({"odd": 2, "list": [{"n": 2}]}),
        );
    }
}
