//! The labels that select the namespaces and objects whose pod templates bindings may change at admission.

use serde_json::{Value, json};

const INCLUDE_LABEL: &str = "bindings.knative.dev/include";
const EXCLUDE_LABEL: &str = "bindings.knative.dev/exclude";

/// The labels that select the namespaces and the objects for which the API server calls the webhook of bindings. The
/// modes are the same as for `SINK_BINDING_SELECTION_MODE` of Knative Eventing.
///
/// The controller of the bindings ignores these labels.
///
/// ```
/// use reknit_webhook::{BindingSelection, Webhook};
///
/// let webhook = Webhook::new("demo.reknit.dev").binding_selection(BindingSelection::Inclusion);
/// # drop(webhook);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindingSelection {
    /// All namespaces and objects, except those with the label `bindings.knative.dev/exclude: "true"`.
    #[default]
    Exclusion,
    /// Only objects with the label `bindings.knative.dev/include: "true"` in namespaces with the same label. Unlike in
    /// Knative, the controller does not label the namespaces of subjects.
    Inclusion,
}

impl BindingSelection {
    /// The expression of both label selectors.
    pub(crate) fn label_expression(self) -> Value {
        match self {
            Self::Exclusion => json!({"key": EXCLUDE_LABEL, "operator": "NotIn", "values": ["true"]}),
            Self::Inclusion => json!({"key": INCLUDE_LABEL, "operator": "In", "values": ["true"]}),
        }
    }

    /// Sets the expression in both label selectors of an entry, and removes the expression of the other mode.
    pub(crate) fn select(entry: &mut Value, expression: &Value) {
        for selector in ["namespaceSelector", "objectSelector"] {
            Self::set_label_expression(&mut entry[selector], expression);
        }
    }

    fn set_label_expression(selector: &mut Value, expression: &Value) {
        let mut expressions = selector["matchExpressions"].as_array().cloned().unwrap_or_default();
        expressions.retain(|other| other["key"] != INCLUDE_LABEL && other["key"] != EXCLUDE_LABEL);
        expressions.push(expression.clone());
        selector["matchExpressions"] = expressions.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_mode_replaces_its_expression_and_keeps_other_expressions() {
        let own = json!({"key": "own", "operator": "Exists"});
        let mut selector = json!({"matchExpressions": [own]});
        for mode in [BindingSelection::Exclusion, BindingSelection::Inclusion] {
            BindingSelection::set_label_expression(&mut selector, &mode.label_expression());
            assert_eq!(selector["matchExpressions"], json!([own, mode.label_expression()]));
        }
    }
}
