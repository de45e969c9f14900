//! Puts what code changed in a typed object onto the object as it came.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Changes `raw` where `after` differs from `before`, and leaves alone what neither knows.
///
/// Items of a list that are as they were are kept wherever they are by now. Others are changed where they are if there are as
/// many as before, and else replaced: nobody knows which is which. So is a list of which `before` has not as many items as
/// `raw`.
pub(crate) fn merge(raw: &mut Value, before: &Value, after: &Value) {
    if before == after {
        return;
    }
    match (raw, before, after) {
        (Value::Object(raw), Value::Object(before), Value::Object(after)) => fields(raw, before, after),
        (Value::Array(raw), Value::Array(before), Value::Array(after)) if raw.len() == before.len() => {
            items(raw, before, after);
        }
        (raw, _, after) => raw.clone_from(after),
    }
}

fn fields(raw: &mut Map<String, Value>, before: &Map<String, Value>, after: &Map<String, Value>) {
    raw.retain(|key, _| after.contains_key(key) || !before.contains_key(key));
    for (key, after) in after {
        match (raw.get_mut(key), before.get(key)) {
            (_, Some(before)) if before == after => {}
            (Some(raw), Some(before)) => merge(raw, before, after),
            _ => {
                raw.insert(key.clone(), after.clone());
            }
        }
    }
}

fn items(raw: &mut Vec<Value>, before: &[Value], after: &[Value]) {
    let mut came: Vec<_> = std::mem::take(raw).into_iter().map(Some).collect();
    let kept: Vec<_> =
        origins(before, after).into_iter().map(|origin| came.get_mut(origin?)?.take()).collect();
    let as_many = before.len() == after.len();
    // What is still there is no other item by now.
    let mut changed = |index: usize, after: &Value| {
        if !as_many {
            return None;
        }
        let (mut item, before) = (came.get_mut(index)?.take()?, before.get(index)?);
        merge(&mut item, before, after);
        Some(item)
    };
    let items = kept.into_iter().zip(after).enumerate().map(|(index, (kept, after))| {
        kept.or_else(|| changed(index, after)).unwrap_or_else(|| after.clone())
    });
    raw.extend(items);
}

/// Where each item was, if it is as it was.
fn origins(before: &[Value], after: &[Value]) -> Vec<Option<usize>> {
    let stays = |index: usize| before.get(index).is_some_and(|before| after.get(index) == Some(before));
    let mut moved: HashMap<&Value, Vec<usize>> = HashMap::new();
    for index in (0..before.len()).rev().filter(|index| !stays(*index)) {
        moved.entry(&before[index]).or_default().push(index);
    }
    let from = |(index, after)| if stays(index) { Some(index) } else { moved.get_mut(after)?.pop() };
    after.iter().enumerate().map(from).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(mut raw: Value, before: Value, after: Value, expected: Value) {
        merge(&mut raw, &before, &after);
        assert_eq!(raw, expected);
    }

    #[test]
    fn only_what_changed_is_changed() {
        check(
            json!({"spec": {"odd": 1, "list": [{"odd": 2}]}}),
            json!({"spec": {"list": [{"n": null}], "empty": []}}),
            json!({"spec": {"list": [{"n": 3}], "empty": [], "new": {"x": 1}}}),
            json!({"spec": {"odd": 1, "list": [{"odd": 2, "n": 3}], "new": {"x": 1}}}),
        );
    }

    #[test]
    fn items_that_are_sorted_keep_what_is_unknown_of_them() {
        check(
            json!([{"n": 2, "odd": "b"}, {"n": 3, "odd": "c"}, {"n": 1, "odd": "a"}, {"n": 2, "odd": "d"}]),
            json!([{"n": 2}, {"n": 3}, {"n": 1}, {"n": 2}]),
            json!([{"n": 1}, {"n": 2}, {"n": 2}, {"n": 3}]),
            json!([{"n": 1, "odd": "a"}, {"n": 2, "odd": "b"}, {"n": 2, "odd": "d"}, {"n": 3, "odd": "c"}]),
        );
    }

    #[test]
    fn items_around_new_ones_and_taken_away_ones_keep_what_is_unknown_of_them() {
        let raw = json!([{"n": 1, "odd": "a"}, {"n": 2, "odd": "b"}]);
        let before = json!([{"n": 1}, {"n": 2}]);
        let becomes = |after: Value, expected: Value| check(raw.clone(), before.clone(), after, expected);
        let (one, two) = (&raw[0], &raw[1]);
        becomes(json!([{"n": 1}, {"n": 2}, {"n": 3}]), json!([one, two, {"n": 3}]));
        becomes(json!([{"n": 0}, {"n": 1}, {"n": 2}]), json!([{"n": 0}, one, two]));
        becomes(json!([{"n": 2}]), json!([two]));
        becomes(json!([{"n": 1}, {"n": 5}, {"n": 6}]), json!([one, {"n": 5}, {"n": 6}]));
        becomes(json!([]), json!([]));
    }

    #[test]
    fn very_many_items_that_all_change_are_mergeed_soon() {
        let items = |from: u32| (from..from + 200_000).map(|n| json!({"n": n})).collect::<Value>();
        let start = std::time::Instant::now();
        check(items(0), items(0), items(200_000), items(200_000));
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn what_was_taken_away_goes_and_a_list_of_which_not_every_item_is_known_is_replaced() {
        check(
            json!({"gone": 1, "odd": 2, "list": [{"n": 1, "odd": 1}, {}]}),
            json!({"gone": 1, "list": [{"n": 1}]}),
            json!({"list": [{"n": 2}]}),
            json!({"odd": 2, "list": [{"n": 2}]}),
        );
    }
}
