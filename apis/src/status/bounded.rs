//! Makes the conditions of a status acceptable to the API server, whose standard schema of conditions limits their
//! texts: otherwise it refuses the whole status.

use serde_json::Value;

use crate::names::{Bounds, dns_subdomain};

const OTHER_BOUNDS: [(&str, Bounds); 1] = [("message", Bounds::CONDITION_MESSAGE)];
const METAV1_BOUNDS: [(&str, Bounds); 2] =
    [("message", Bounds::CONDITION_MESSAGE), ("reason", Bounds::CONDITION_REASON)];

/// Cuts the messages of all conditions in a status, and makes the reasons and types of `metav1` conditions valid. Of
/// conditions whose types become equal, one is kept. Returns the names of the changed fields, such as
/// `conditions[Ready].message`.
///
/// The conditions are the items of all lists named `conditions`, at any depth: Gateway API's statuses have them for
/// each parent, for example. The conditions in the status itself are Knative's if `has_knative_conditions`. Their schema
/// does not limit reasons, and Knative's own are sentences, some of them.
#[doc(hidden)]
pub fn bound_conditions(status: &mut Value, has_knative_conditions: bool) -> Vec<String> {
    let mut changed = Vec::new();
    let knative = status.get_mut("conditions").filter(|_| has_knative_conditions).map(Value::take);
    visit(status, &mut changed);
    if let Some(mut conditions) = knative {
        let items = conditions.as_array_mut().into_iter().flatten();
        items.for_each(|condition| bound(condition, &OTHER_BOUNDS, &mut changed));
        status["conditions"] = conditions;
    }
    changed
}

fn visit(value: &mut Value, changed: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::Array(conditions) if name == "conditions" => {
                        let mut has_changed_type = false;
                        for condition in conditions.iter_mut() {
                            if is_metav1(condition) {
                                has_changed_type |= bound_type(condition, changed);
                                bound(condition, &METAV1_BOUNDS, changed);
                            } else {
                                bound(condition, &OTHER_BOUNDS, changed);
                            }
                        }
                        if has_changed_type {
                            merge_equal_types(conditions);
                        }
                    }
                    value => visit(value, changed),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, changed)),
        _ => {}
    }
}

/// Returns true if the condition has all fields that `metav1.Condition` requires.
fn is_metav1(condition: &Value) -> bool {
    ["type", "status", "lastTransitionTime", "reason", "message"]
        .iter()
        .all(|name| condition.get(name).is_some())
}

/// Makes the type of a condition valid, and returns true if it was not.
fn bound_type(condition: &mut Value, changed: &mut Vec<String>) -> bool {
    let Some(Value::String(kind)) = condition.get_mut("type") else { return false };
    let bounded = match kind.split_once('/') {
        Some((domain, name)) if dns_subdomain(domain).is_empty() => {
            format!("{domain}/{}", Bounds::CONDITION_TYPE.within(316 - domain.len() - 1).apply(name))
        }
        _ => Bounds::CONDITION_TYPE.apply(kind).into_owned(),
    };
    let is_changed = bounded != *kind;
    if is_changed {
        changed.push(format!("conditions[{}].type", Bounds::LABEL_VALUE.apply(kind)));
        *kind = bounded;
    }
    is_changed
}

/// Keeps one of several conditions of the same type, since the API server refuses a status with two of them. One that is
/// not true has precedence, so that no failure is hidden.
fn merge_equal_types(conditions: &mut Vec<Value>) {
    let mut merged: Vec<Value> = Vec::new();
    for condition in conditions.drain(..) {
        match merged.iter_mut().find(|kept| kept["type"] == condition["type"]) {
            Some(kept) if kept["status"] == "True" => *kept = condition,
            Some(_) => {}
            None => merged.push(condition),
        }
    }
    *conditions = merged;
}

fn bound(condition: &mut Value, all_bounds: &[(&str, Bounds)], changed: &mut Vec<String>) {
    let Some(fields) = condition.as_object_mut() else { return };
    for (name, bounds) in all_bounds {
        let Some(text) = fields.get(*name).and_then(Value::as_str) else { continue };
        let bounded = bounds.apply(text);
        let Some(kind) = fields.get("type").and_then(Value::as_str).filter(|_| *bounded != *text) else {
            continue;
        };
        changed.push(format!("conditions[{}].{name}", Bounds::LABEL_VALUE.apply(kind)));
        let bounded = bounded.into_owned();
        fields.insert((*name).into(), bounded.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metav1(kind: &str, reason: &str, message: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn conditions_are_made_valid_at_any_depth() {
        let long = "é".repeat(20_000);
        let mut status = json!({
            "conditions": [metav1("Ready", "no pods", &long), metav1("Valid", "Valid", "")],
            "parents": [{"conditions": [metav1("a b", "", "")]}],
            "message": long,
        });
        let changed = bound_conditions(&mut status, false);
        assert_eq!(
            changed,
            [
                "conditions[Ready].message",
                "conditions[Ready].reason",
                "conditions[a-b].type",
                "conditions[a-b].reason"
            ]
        );
        assert_eq!(status["conditions"][0]["message"], "é".repeat(16_384));
        assert_eq!(status["conditions"][0]["reason"], "noPods");
        assert_eq!(status["conditions"][1], metav1("Valid", "Valid", ""));
        assert_eq!(status["parents"][0]["conditions"][0], metav1("a-b", "Unspecified", ""));
        assert_eq!(status["message"], long, "only conditions have bounds");
        assert_eq!(bound_conditions(&mut status, false), [""; 0]);
    }

    #[test]
    fn a_type_is_a_name_that_may_have_a_domain() {
        for (kind, expected) in [
            ("example.com/Pods Ready", "example.com/Pods-Ready"),
            ("Example.com/Ready", "Example.com-Ready"),
            ("a/b/c", "a/b-c"),
            ("/Ready", "Ready"),
            ("example.com/", "example.com/unknown"),
        ] {
            let mut status = json!({"conditions": [metav1(kind, "R", "")]});
            bound_conditions(&mut status, false);
            assert_eq!(status["conditions"][0]["type"], expected, "{kind}");
            assert_eq!(bound_conditions(&mut status, false), [""; 0], "{kind}");
        }
        let mut long =
            json!({"conditions": [metav1(&format!("{}/{}", "d".repeat(250), "x".repeat(400)), "R", "")]});
        bound_conditions(&mut long, false);
        assert_eq!(long["conditions"][0]["type"].as_str().unwrap().len(), 316);
    }

    #[test]
    fn conditions_whose_types_become_equal_are_merged_and_a_failure_is_kept() {
        let failed = |kind| {
            let mut condition = metav1(kind, "Failed", "");
            condition["status"] = "False".into();
            condition
        };
        let mut status = json!({"conditions": [
            metav1("a-b", "R", ""), failed("a b"), metav1("a/b", "R", ""), metav1("Ready", "R", ""),
        ]});
        assert_eq!(bound_conditions(&mut status, false), ["conditions[a-b].type"]);
        assert_eq!(
            status["conditions"],
            json!([failed("a-b"), metav1("a/b", "R", ""), metav1("Ready", "R", "")])
        );
        let same = json!([metav1("Ready", "R", ""), metav1("Ready", "S", "")]);
        let mut status = json!({"conditions": same});
        bound_conditions(&mut status, false);
        assert_eq!(status["conditions"], same, "a list without such a key may have both");
    }

    #[test]
    fn a_reason_of_knative_is_kept_and_its_message_is_cut() {
        let mut status = json!({
            "conditions": [metav1("Ready", "Unable to get the URI", &"x".repeat(40_000))],
            "nested": {"conditions": [metav1("Ready", "no pods", "")]},
        });
        let changed = bound_conditions(&mut status, true);
        assert_eq!(changed, ["conditions[Ready].reason", "conditions[Ready].message"]);
        assert_eq!(status["conditions"][0]["reason"], "Unable to get the URI");
        assert_eq!(status["nested"]["conditions"][0]["reason"], "noPods");
    }
}
