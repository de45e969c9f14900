//! The fields that the statuses of Knative's Kinds share: conditions and the observed generation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::condition::Condition;

/// The fields that the statuses of all Knative-shaped Kinds share. Embed it with `#[serde(flatten)]`.
///
/// ```
/// use reknit_apis::DuckStatus;
/// use serde_json::json;
///
/// let stored = json!({"observedGeneration": 3, "conditions": [{"type": "Ready", "status": "True"}]});
/// let status: DuckStatus = serde_json::from_value(stored)?;
/// assert_eq!(status.observed_generation, Some(3));
/// assert_eq!(status.condition("Ready").unwrap().status, "True");
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The state of the object, as its controller last observed it.")]
pub struct DuckStatus {
    /// The `metadata.generation` that the controller last reconciled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions of the object, one of each type, sorted by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Additional information without a field of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl DuckStatus {
    /// Returns the condition of this type, if it is set.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Restores the transition time of each condition that is otherwise equal to one in `before`. Then a condition that
    /// changes and changes back within one reconcile counts as unchanged.
    pub fn keep_transition_times(&mut self, before: &Self) {
        for condition in &mut self.conditions {
            if let Some(old) = before.conditions.iter().find(|old| old.eq_ignoring_transition_time(condition))
            {
                condition.last_transition_time.clone_from(&old.last_transition_time);
            }
        }
    }
}

/// A status that embeds [`DuckStatus`] in a field, or is one. [`kind!`](crate::kind) implements it.
// Not `AsRef + AsMut`, since a foreign trait cannot have its own compiler message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a Knative-shaped status",
    label = "lacks the duck part (observedGeneration, conditions)",
    note = "add the field `#[serde(flatten)] duck: DuckStatus` and name it: `kind!(YourKind {{ status: {Self}, conditions: knative(duck) }});`",
    note = "a Kind without conditions is declared by `kind!(YourKind {{ status: {Self} }});`"
)]
pub trait DuckShaped: Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync {
    /// Returns the embedded `DuckStatus`.
    fn duck(&self) -> &DuckStatus;
    /// Returns the embedded `DuckStatus` for changes.
    fn duck_mut(&mut self) -> &mut DuckStatus;
}

impl DuckShaped for DuckStatus {
    fn duck(&self) -> &DuckStatus {
        self
    }

    fn duck_mut(&mut self) -> &mut DuckStatus {
        self
    }
}
