//! Makes the conditions of a status acceptable to the API server, whose standard schema of conditions limits their
//! texts: otherwise it refuses the whole status.

use serde_json::Value;

use crate::names::Bounds;

/// Cuts the messages of all conditions in a status, and makes the reasons and types of `metav1` conditions valid.
/// Returns the names of the changed fields, such as `conditions[Ready].message`.
///
/// The conditions are the items of all lists named `conditions`, at any depth: Gateway API's statuses have them for
/// each parent, for example.
#[doc(hidden)]
pub fn bound_conditions(status: &mut Value) -> Vec<String> {
    let mut changed = Vec::new();
    visit(status, &mut changed);
    changed
}

fn visit(value: &mut Value, changed: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::Array(conditions) if name == "conditions" => {
                        conditions.iter_mut().for_each(|condition| bound(condition, changed));
                    }
                    value => visit(value, changed),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, changed)),
        _ => {}
    }
}

fn bound(condition: &mut Value, changed: &mut Vec<String>) {
    let Some(fields) = condition.as_object_mut() else { return };
    let Some(kind) = fields.get("type").and_then(Value::as_str).map(str::to_owned) else { return };
    // Knative's conditions omit empty fields, and their schema does not limit reasons.
    let is_metav1 = ["lastTransitionTime", "message", "reason"].iter().all(|name| fields.contains_key(*name));
    let bounds = [
        ("message", Bounds::CONDITION_MESSAGE),
        ("reason", Bounds::CONDITION_REASON),
        ("type", Bounds::CONDITION_TYPE),
    ];
    if is_metav1
        && !fields
            .get("status")
            .is_some_and(|status| ["True", "False", "Unknown"].iter().any(|one| status == one))
    {
        fields.insert("status".into(), "Unknown".into());
        changed.push(format!("conditions[{}].status", Bounds::LABEL_VALUE.apply(&kind)));
    }
    for (name, bounds) in bounds {
        if (is_metav1 || name == "message")
            && let Some(Value::String(text)) = fields.get_mut(name)
            && let bounded = bounds.apply(text)
            && *bounded != **text
        {
            *text = bounded.into_owned();
            changed.push(format!("conditions[{}].{name}", Bounds::LABEL_VALUE.apply(&kind)));
        }
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
        let changed = bound_conditions(&mut status);
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
        assert_eq!(bound_conditions(&mut status), [""; 0]);
    }

    #[test]
    fn any_other_status_becomes_unknown() {
        let mut status = json!({"conditions": [metav1("Ready", "Ready", "")]});
        status["conditions"][0]["status"] = json!("yes");
        assert_eq!(bound_conditions(&mut status), ["conditions[Ready].status"]);
        assert_eq!(status["conditions"][0]["status"], "Unknown");
    }

    #[test]
    fn a_reason_of_knative_is_kept_and_its_message_is_cut() {
        let mut status = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "a b", "message": "x".repeat(40_000)}]});
        assert_eq!(bound_conditions(&mut status), ["conditions[Ready].message"]);
        assert_eq!(status["conditions"][0]["reason"], "a b");
    }
}
