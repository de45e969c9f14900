//! The shape that Knative's Kinds share: a status with conditions and the generation it speaks of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::condition::Condition;

/// The part of a status that every Knative-shaped Kind shares; embedded with `#[serde(flatten)]`.
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
#[schemars(description = "How far the controller got with the object.")]
pub struct DuckStatus {
    /// The `metadata.generation` that the controller last worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Whether the object is as its spec wants it, and why not. One of each type, sorted by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Further facts about the status that have no field of their own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl DuckStatus {
    /// The condition of this type, if it is there.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Gives each condition that says what it said before the time it had before.
    ///
    /// So a condition that went away and came back within one pass has not changed.
    pub fn keep_transition_times(&mut self, before: &Self) {
        for condition in &mut self.conditions {
            if let Some(same) =
                before.conditions.iter().find(|old| old.eq_ignoring_transition_time(condition))
            {
                condition.last_transition_time.clone_from(&same.last_transition_time);
            }
        }
    }

    /// Whether the two are equal but for when their conditions changed.
    pub fn eq_ignoring_transition_time(&self, other: &Self) -> bool {
        self.observed_generation == other.observed_generation
            && self.annotations == other.annotations
            && self.conditions.len() == other.conditions.len()
            && self.conditions.iter().zip(&other.conditions).all(|(a, b)| a.eq_ignoring_transition_time(b))
    }
}

/// A status that embeds [`DuckStatus`], or is one: where a Kind has nothing to add, `status = "DuckStatus"`.
///
/// ```
/// use reknit_apis::{DuckStatus, duck_shaped};
///
/// #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
/// #[serde(rename_all = "camelCase")]
/// struct LampStatus {
///     #[serde(flatten)]
///     duck: DuckStatus,
///     #[serde(default)]
///     switched_on: bool,
/// }
///
/// duck_shaped!(LampStatus.duck);
/// ```
// An own trait, not `AsRef + AsMut`: a foreign trait cannot carry a readable error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a Knative-shaped status",
    label = "lacks the duck part (observedGeneration, conditions)",
    note = "add the field `#[serde(flatten)] duck: DuckStatus` and `impl DuckShaped for {Self}`",
    note = "for a Kind without conditions write `impl Kind for …` instead of `impl KRShaped for …`"
)]
pub trait DuckShaped: Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync {
    /// The duck part, to read.
    fn duck(&self) -> &DuckStatus;
    /// The duck part, to write.
    fn duck_mut(&mut self) -> &mut DuckStatus;
}

/// Says which field of a status is its duck part: `impl DuckShaped` for a status that embeds [`DuckStatus`].
///
/// ```
/// use reknit_apis::{DuckShaped, DuckStatus, duck_shaped};
///
/// #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
/// struct LampStatus {
///     #[serde(flatten)]
///     duck: DuckStatus,
/// }
///
/// duck_shaped!(LampStatus.duck);
///
/// assert_eq!(LampStatus::default().duck(), &DuckStatus::default());
/// ```
#[macro_export]
macro_rules! duck_shaped {
    ($status:ident . $field:ident) => {
        impl $crate::DuckShaped for $status {
            fn duck(&self) -> &$crate::DuckStatus {
                &self.$field
            }

            fn duck_mut(&mut self) -> &mut $crate::DuckStatus {
                &mut self.$field
            }
        }
    };
}

impl DuckShaped for DuckStatus {
    fn duck(&self) -> &DuckStatus {
        self
    }

    fn duck_mut(&mut self) -> &mut DuckStatus {
        self
    }
}
