//! Label selectors, as a list request writes them.

use serde_json::Value;

/// Whether the object matches every requirement: `a=b`, `a!=b`, `a`, `!a`, `a in (b,c)`, `a notin (b,c)`.
pub(super) fn matches(selector: &str, object: &Value) -> bool {
    requirements(selector).iter().all(|requirement| holds(requirement, &object["metadata"]["labels"]))
}

/// The parts between the commas that are not within brackets.
fn requirements(selector: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for letter in selector.chars() {
        depth += match letter {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        match parts.last_mut() {
            Some(last) if letter != ',' || depth > 0 => last.push(letter),
            _ => parts.push(String::new()),
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

fn holds(requirement: &str, labels: &Value) -> bool {
    let label = |name: &str| labels[name.trim()].as_str();
    let among = |values: &str, label: Option<&str>| {
        let values = values.trim().trim_start_matches('(').trim_end_matches(')');
        values.split(',').any(|value| label == Some(value.trim()))
    };
    if let Some((name, values)) = requirement.split_once(" notin ") {
        return !among(values, label(name));
    }
    if let Some((name, values)) = requirement.split_once(" in ") {
        return among(values, label(name));
    }
    if let Some((name, value)) = requirement.split_once("!=") {
        return label(name) != Some(value.trim());
    }
    if let Some((name, value)) = requirement.split_once('=') {
        return label(name) == Some(value.trim_start_matches('=').trim());
    }
    match requirement.strip_prefix('!') {
        Some(name) => label(name).is_none(),
        None => label(requirement).is_some(),
    }
}
