//! Puts what code changed in a typed object onto the object as it came.

use serde_json::{Map, Value};

/// Changes `raw` where `after` differs from `before`, and leaves alone what neither knows.
///
/// Lists of which all three have as many items are changed item by item; others are replaced.
pub(crate) fn graft(raw: &mut Value, before: &Value, after: &Value) {
    if before == after {
        return;
    }
    match (raw, before, after) {
        (Value::Object(raw), Value::Object(before), Value::Object(after)) => fields(raw, before, after),
        (Value::Array(raw), Value::Array(before), Value::Array(after))
            if raw.len() == before.len() && before.len() == after.len() =>
        {
            let items = raw.iter_mut().zip(before).zip(after);
            items.for_each(|((raw, before), after)| graft(raw, before, after));
        }
        (raw, _, after) => raw.clone_from(after),
    }
}

fn fields(raw: &mut Map<String, Value>, before: &Map<String, Value>, after: &Map<String, Value>) {
    raw.retain(|key, _| after.contains_key(key) || !before.contains_key(key));
    for (key, after) in after {
        match (raw.get_mut(key), before.get(key)) {
            (_, Some(before)) if before == after => {}
            (Some(raw), Some(before)) => graft(raw, before, after),
            _ => {
                raw.insert(key.clone(), after.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(mut raw: Value, before: Value, after: Value, expected: Value) {
        graft(&mut raw, &before, &after);
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
    fn what_was_taken_away_goes_and_a_list_of_another_length_is_replaced() {
        check(
            json!({"gone": 1, "odd": 2, "list": [1]}),
            json!({"gone": 1, "list": [1]}),
            json!({"list": [1, 2]}),
            json!({"odd": 2, "list": [1, 2]}),
        );
    }
}
