//! The order of lists into which bindings inject.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::pod_specable::PodSpecable;

/// Undoes what a repeated injection has only moved. `rest` is the subject without the injection that `before` may have, and
/// `after` the subject with the new one.
///
/// If the items that were injected into a list are the same as before, and in the same order, the list keeps the order
/// that it had. So bindings that each append to a list do not move each other's items in turn. The order of the injected
/// items among themselves stays that of `after`: in a list such as `args` it has a meaning.
pub(super) fn keep_order(before: &PodSpecable, rest: &PodSpecable, after: &mut PodSpecable) {
    if before == rest || before == after {
        return;
    }
    if let Ok(ordered) = in_order_of(before, rest, after) {
        *after = ordered;
    }
}

fn in_order_of(
    before: &PodSpecable,
    rest: &PodSpecable,
    after: &PodSpecable,
) -> serde_json::Result<PodSpecable> {
    let mut ordered = json(after)?;
    restore_fields(&json(before)?, &json(rest)?, &mut ordered);
    PodSpecable::deserialize(Value::Object(ordered))
}

fn json(subject: &PodSpecable) -> serde_json::Result<Map<String, Value>> {
    subject.serialize(serde_json::value::Serializer).and_then(Map::deserialize)
}

fn restore_fields(before: &Map<String, Value>, rest: &Map<String, Value>, after: &mut Map<String, Value>) {
    for (name, after) in after {
        match (before.get(name), rest.get(name), after) {
            (Some(Value::Object(before)), Some(Value::Object(rest)), Value::Object(after)) => {
                restore_fields(before, rest, after);
            }
            (Some(Value::Array(before)), Some(Value::Array(rest)), Value::Array(after)) => match &**name {
                "containers" | "initContainers" => restore_containers(before, rest, after),
                _ => restore_items(before, rest, after, |a, b| a == b),
            },
            _ => {}
        }
    }
}

/// Restores the lists within containers of the same name, and then the order of the containers.
fn restore_containers(before: &[Value], rest: &[Value], after: &mut [Value]) {
    let [old, others] = [before, rest].map(by_name);
    for container in after.iter_mut().filter_map(Value::as_object_mut) {
        let name = container.get("name").and_then(Value::as_str);
        if let Some((old, other)) = name.and_then(|name| Some((*old.get(name)?, *others.get(name)?))) {
            restore_fields(old, other, container);
        }
    }
    restore_items(before, rest, after, |a, b| a["name"] == b["name"]);
}

fn by_name(containers: &[Value]) -> BTreeMap<&str, &Map<String, Value>> {
    containers
        .iter()
        .filter_map(|container| Some((container["name"].as_str()?, container.as_object()?)))
        .collect()
}

/// Restores the order of a list if the same items were injected as before. Items for which `is_same` returns true are
/// versions of one item.
fn restore_items(
    before: &[Value],
    rest: &[Value],
    after: &mut [Value],
    is_same: impl Fn(&Value, &Value) -> bool,
) {
    let [Some(old), Some(new)] = [before, after].map(|items| injected(items, rest, &is_same)) else { return };
    let of = |items: &[Value], injected: &[bool], which: bool| -> Vec<Value> {
        items
            .iter()
            .zip(injected)
            .filter(|(_, injected)| **injected == which)
            .map(|(item, _)| item.clone())
            .collect()
    };
    let ours = of(after, &new, true);
    if of(before, &old, true) != ours {
        return;
    }
    let (mut ours, mut others) = (ours.into_iter(), of(after, &new, false).into_iter());
    for (item, is_injected) in after.iter_mut().zip(old) {
        let next = if is_injected { ours.next() } else { others.next() };
        next.into_iter().for_each(|next| *item = next);
    }
}

/// Returns for each item whether it was injected, that is, not in `rest`. `None` if items of `rest` are missing or are in
/// another order.
fn injected(items: &[Value], rest: &[Value], is_same: impl Fn(&Value, &Value) -> bool) -> Option<Vec<bool>> {
    let mut rest = rest.iter().peekable();
    let injected = items.iter().map(|item| rest.next_if(|rest| is_same(item, rest)).is_none()).collect();
    rest.next().is_none().then_some(injected)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn subject(spec: &Value) -> PodSpecable {
        let object = json!({"spec": {"template": {"spec": spec}}});
        serde_json::from_value(object).unwrap()
    }

    #[track_caller]
    fn assert_order(before: &Value, rest: &Value, after: &Value, expected: &Value) {
        let mut ordered = subject(after);
        keep_order(&subject(before), &subject(rest), &mut ordered);
        assert_eq!(ordered, subject(expected), "{before} {rest} {after}");
    }

    fn env(names: &[&str]) -> Value {
        names.iter().map(|name| json!({"name": name, "value": "1"})).collect()
    }

    /// A container with these variables.
    fn with_env(names: &[&str]) -> Value {
        json!({"containers": [{"name": "main", "env": env(names)}]})
    }

    #[test]
    fn an_injection_that_is_the_same_stays_where_it_is() {
        for before in [["a", "x", "b", "y"], ["x", "a", "y", "b"], ["a", "b", "x", "y"]] {
            let (rest, after) = (with_env(&["x", "y"]), with_env(&["x", "y", "a", "b"]));
            assert_order(&with_env(&before), &rest, &after, &with_env(&before));
        }
        let mounts = |paths: &[&str]| -> Value {
            let mounts: Value = paths.iter().map(|path| json!({"name": "v", "mountPath": path})).collect();
            json!({"containers": [{"name": "main", "volumeMounts": mounts}]})
        };
        assert_order(
            &mounts(&["/a", "/x"]),
            &mounts(&["/x"]),
            &mounts(&["/x", "/a"]),
            &mounts(&["/a", "/x"]),
        );
    }

    #[test]
    fn an_injection_of_which_an_item_is_new_changed_or_moved_has_the_new_order() {
        let rest = with_env(&["x"]);
        for after in [["x", "b", "a"].as_slice(), &["x", "a", "b", "c"], &["x", "a"], &["x", "a", "c"]] {
            let after = with_env(after);
            assert_order(&with_env(&["a", "b", "x"]), &rest, &after, &after);
        }
    }

    #[test]
    fn injected_containers_stay_where_they_are_and_the_others_get_the_injection() {
        let container = |name: &str, names: &[&str]| json!({"name": name, "env": env(names)});
        let spec = |containers: Value| json!({"containers": containers, "initContainers": containers});
        let before =
            spec(json!([container("side", &[]), container("main", &["a", "x"]), container("late", &["x"])]));
        let rest = spec(json!([container("main", &["x"]), container("late", &["x"])]));
        let [main, side, late] =
            [container("main", &["x", "a"]), container("side", &[]), container("late", &["x", "a"])];
        let after = spec(json!([main, late, side]));
        let expected = spec(json!([side, container("main", &["a", "x"]), late]));
        assert_order(&before, &rest, &after, &expected);
    }

    #[test]
    fn the_values_of_injected_arguments_can_be_swapped() {
        let args = |args: &[&str]| json!({"containers": [{"name": "main", "args": args}]});
        let rest = args(&["--own"]);
        let before = args(&["--first", "1", "--second", "2", "--own"]);
        let swapped = args(&["--own", "--first", "2", "--second", "1"]);
        assert_order(&before, &rest, &swapped, &swapped);
        let same = args(&["--own", "--first", "1", "--second", "2"]);
        assert_order(&before, &rest, &same, &before);
    }
}
