//! Defaults that break the bounds of their own field.

use serde_json::Value;

/// Describes each rule of the schema that the default breaks, with the path within the default. The API server refuses
/// the definition for them.
pub(super) fn faults(default: &Value, schema: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    check("", default, schema, &mut faults);
    faults
}

fn check(path: &str, value: &Value, schema: &Value, faults: &mut Vec<String>) {
    let mut report = |rule: String| {
        let place = if path.is_empty() { String::new() } else { format!(" in {path}") };
        faults.push(format!("the default {value}{place} {rule}: set another default, or change the rule"));
    };
    let is_listed = schema["enum"].as_array().is_none_or(|values| values.contains(value));
    if !is_listed && !value.is_null() {
        report("is no value of the enum".into());
    }
    match value {
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            let bound = |name: &str| schema[name].as_f64();
            let is_exclusive = |name: &str| schema[name] == true;
            if let Some(minimum) = bound("minimum")
                && (number < minimum || is_exclusive("exclusiveMinimum") && number <= minimum)
            {
                report(format!("is below the minimum {minimum}"));
            }
            if let Some(maximum) = bound("maximum")
                && (number > maximum || is_exclusive("exclusiveMaximum") && number >= maximum)
            {
                report(format!("is above the maximum {maximum}"));
            }
        }
        Value::String(text) => check_size(text.chars().count(), "Length", schema, report),
        Value::Array(items) => {
            check_size(items.len(), "Items", schema, report);
            for (index, item) in items.iter().enumerate() {
                check(&format!("{path}[{index}]"), item, &schema["items"], faults);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                check(&path, value, &schema["properties"][name], faults);
            }
        }
        _ => {}
    }
}

/// Checks the bounds `min<what>` and `max<what>`.
fn check_size(size: usize, what: &str, schema: &Value, mut report: impl FnMut(String)) {
    let bound = |prefix: &str| schema[format!("{prefix}{what}")].as_u64();
    if let Some(minimum) = bound("min").filter(|minimum| (size as u64) < *minimum) {
        report(format!("is shorter than min{what} {minimum}"));
    }
    if let Some(maximum) = bound("max").filter(|maximum| size as u64 > *maximum) {
        report(format!("is longer than max{what} {maximum}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_default_that_breaks_a_bound_of_its_field_is_a_fault() {
        let list = json!({"minItems": 1, "items": {"properties": {"a": {"maxLength": 1}}}});
        for (default, schema, fault) in [
            (json!(0), json!({"minimum": 1}), "the default 0 is below the minimum 1"),
            (json!(1), json!({"minimum": 1, "exclusiveMinimum": true}), "the default 1 is below"),
            (json!(9.5), json!({"maximum": 9}), "the default 9.5 is above the maximum 9"),
            (json!(""), json!({"minLength": 1}), "the default \"\" is shorter than minLength 1"),
            (json!("b"), json!({"enum": ["a"]}), "the default \"b\" is no value of the enum"),
            (json!([]), list.clone(), "the default [] is shorter than minItems 1"),
            (json!([{"a": "xy"}]), list.clone(), "the default \"xy\" in [0].a is longer than maxLength 1"),
        ] {
            let faults = faults(&default, &schema);
            assert!(matches!(&*faults, [only] if only.starts_with(fault)), "{faults:?}");
        }
        for (default, schema) in [
            (json!(null), json!({"minimum": 1, "enum": [1]})),
            (json!(1), json!({"minimum": 1, "maximum": 1})),
            (json!("ä"), json!({"maxLength": 1})),
            (json!([{"a": "x", "b": ""}]), list),
        ] {
            assert_eq!(faults(&default, &schema), [""; 0]);
        }
    }
}
