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
/// use reknit_injection::Context;
/// use reknit_knative::{Bindable, BindingMutator, BindingSelection};
///
/// fn mutator<K: Bindable>(cx: &Context) -> BindingMutator {
///     BindingMutator::of::<K>(cx).selection(BindingSelection::Inclusion)
/// }
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
    /// Sets the expression of this mode in both label selectors of an entry of a webhook configuration, and removes the
    /// expression of the other mode.
    pub(super) fn select(self, entry: &mut Value) {
        let expression = match self {
            Self::Exclusion => json!({"key": EXCLUDE_LABEL, "operator": "NotIn", "values": ["true"]}),
            Self::Inclusion => json!({"key": INCLUDE_LABEL, "operator": "In", "values": ["true"]}),
        };
        for selector in ["namespaceSelector", "objectSelector"] {
            let selector = &mut entry[selector]["matchExpressions"];
            let mut expressions = selector.as_array().cloned().unwrap_or_default();
            expressions.retain(|other| other["key"] != INCLUDE_LABEL && other["key"] != EXCLUDE_LABEL);
            expressions.push(expression.clone());
            *selector = expressions.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_mode_replaces_its_expression_and_keeps_other_expressions() {
        let own = json!({"key": "own", "operator": "Exists"});
        let mut entry = json!({"objectSelector": {"matchExpressions": [own]}});
        for (mode, key) in
            [(BindingSelection::Exclusion, EXCLUDE_LABEL), (BindingSelection::Inclusion, INCLUDE_LABEL)]
        {
            mode.select(&mut entry);
            let expressions = entry["objectSelector"]["matchExpressions"].as_array().unwrap();
            assert_eq!(expressions.len(), 2);
            assert_eq!((&expressions[0], &expressions[1]["key"]), (&own, &json!(key)));
            assert_eq!(entry["namespaceSelector"]["matchExpressions"], json!([expressions[1]]));
        }
    }
}
