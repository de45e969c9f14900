//! Makes the conditions of a status acceptable to the API server, whose standard schema of conditions limits their
//! texts: otherwise it refuses the whole status.

use serde_json::Value;

use crate::names::Bounds;

const OTHER_BOUNDS: [(&str, Bounds); 1] = [("message", Bounds::CONDITION_MESSAGE)];
const METAV1_BOUNDS: [(&str, Bounds); 3] = [
    ("message", Bounds::CONDITION_MESSAGE),
    ("reason", Bounds::CONDITION_REASON),
    ("type", Bounds::CONDITION_TYPE),
];

/// Cuts the messages of all conditions in a status, and makes the reasons and types of `metav1` conditions valid.
/// Returns the names of the changed fields, such as `conditions[Ready].message`.
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
                        for condition in conditions {
                            let bounds =
                                if is_metav1(condition) { &METAV1_BOUNDS[..] } else { &OTHER_BOUNDS };
                            bound(condition, bounds, changed);
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
                "conditions[a-b].reason",
                "conditions[a-b].type"
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
