//! The differences of two states of an object, as lines of text.

use std::collections::BTreeSet;

use serde_json::Value;

/// The fields by which list items of the same identity are found.
const IDENTITIES: [&str; 3] = ["name", "type", "uid"];

/// Returns a line for each value that differs: `+ path: value`, `- path: value` or `~ path: old → new`. Of a text of
/// several lines, only the lines between the first and the last difference.
pub(super) fn diff(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    add(&mut lines, "", before, after);
    lines
}

fn add(lines: &mut Vec<String>, path: &str, before: &Value, after: &Value) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(_) | Value::Null, Value::Object(_) | Value::Null)
            if has_fields(before) || has_fields(after) =>
        {
            let names: BTreeSet<_> = fields(before).chain(fields(after)).collect();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                add(lines, &path, &before[name], &after[name]);
            }
        }
        (Value::Array(_) | Value::Null, Value::Array(_) | Value::Null)
            if !items(before).is_empty() || !items(after).is_empty() =>
        {
            add_items(lines, path, items(before), items(after));
        }
        (Value::String(before), Value::String(after)) if before.contains('\n') || after.contains('\n') => {
            add_text(lines, path, before, after);
        }
        (Value::Null, after) => lines.push(format!("+ {path}: {after}")),
        (before, Value::Null) => lines.push(format!("- {path}: {before}")),
        (before, after) => lines.push(format!("~ {path}: {before} → {after}")),
    }
}

/// Compares the items of a list by their identity, or else by their index.
fn add_items(lines: &mut Vec<String>, path: &str, before: &[Value], after: &[Value]) {
    let identity = IDENTITIES.into_iter().find(|field| is_unique(before, field) && is_unique(after, field));
    let Some(field) = identity else {
        for index in 0..before.len().max(after.len()) {
            let item = |items: &[Value]| items.get(index).cloned().unwrap_or_default();
            add(lines, &format!("{path}[{index}]"), &item(before), &item(after));
        }
        return;
    };
    let find = |items: &[Value], name: &str| {
        items.iter().find(|item| item[field] == name).cloned().unwrap_or_default()
    };
    let names: BTreeSet<_> = before.iter().chain(after).filter_map(|item| item[field].as_str()).collect();
    for name in names {
        add(lines, &format!("{path}[{name}]"), &find(before, name), &find(after, name));
    }
}

fn add_text(lines: &mut Vec<String>, path: &str, before: &str, after: &str) {
    let [before, after] = [before, after].map(|text| text.lines().collect::<Vec<_>>());
    let common = before.iter().zip(&after).take_while(|(before, after)| before == after).count();
    let rest = before[common..].iter().rev().zip(after[common..].iter().rev());
    let common_end = rest.take_while(|(before, after)| before == after).count();
    lines.push(format!("~ {path}: from line {}", common + 1));
    lines.extend(before[common..before.len() - common_end].iter().map(|line| format!("  - {line}")));
    lines.extend(after[common..after.len() - common_end].iter().map(|line| format!("  + {line}")));
}

fn has_fields(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| !fields.is_empty())
}

fn fields(value: &Value) -> impl Iterator<Item = &String> {
    value.as_object().into_iter().flat_map(|fields| fields.keys())
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The field that identifies the items of a list.
pub(super) fn identity(items: &[Value]) -> Option<&'static str> {
    IDENTITIES.into_iter().find(|field| is_unique(items, field))
}

fn is_unique(items: &[Value], field: &str) -> bool {
    let names: BTreeSet<_> = items.iter().filter_map(|item| item[field].as_str()).collect();
    names.len() == items.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_is_one_line_with_its_path() {
        for (before, after, expected) in [
            (
                json!({"a": 1, "b": {"c": "x"}}),
                json!({"a": 1, "b": {"c": "y"}}),
                &["~ b.c: \"x\" → \"y\""][..],
            ),
            (json!({}), json!({"a": {"b": [1, {}]}}), &["+ a.b[0]: 1", "+ a.b[1]: {}"]),
            (json!({"a": [1]}), json!({"a": []}), &["- a[0]: 1"]),
            (json!({"a": {}}), json!({"a": 1}), &["~ a: {} → 1"]),
            (json!({"a": null}), json!({}), &[]),
            (
                json!({"c": [{"name": "a", "x": 1}]}),
                json!({"c": [{"name": "b"}, {"name": "a", "x": 2}]}),
                &["~ c[a].x: 1 → 2", "+ c[b].name: \"b\""],
            ),
            (
                json!({"a": "1\n2\n3\n"}),
                json!({"a": "1\n4\n5\n3\n"}),
                &["~ a: from line 2", "  - 2", "  + 4", "  + 5"],
            ),
        ] {
            assert_eq!(diff(&before, &after), expected, "{before} {after}");
        }
    }
}
