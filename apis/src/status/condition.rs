//! One condition of a status.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer, Serialize};

/// One aspect of an object's state, an entry of `status.conditions`.
///
/// Set conditions through [`Conditions`](crate::Conditions), which keeps the list sorted and the transition times
/// correct.
///
/// ```
/// use reknit_apis::Condition;
///
/// let condition: Condition = serde_json::from_str(r#"{"type": "Ready", "status": "False", "reason": "NoPods"}"#)?;
/// assert!(condition.is_false());
/// assert_eq!(condition.reason.as_deref(), Some("NoPods"));
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "One aspect of an object's state.")]
pub struct Condition {
    /// The type in CamelCase, such as `Ready` or `PodsScheduled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    #[schemars(with = "String")]
    pub status: ConditionStatus,
    /// The severity while the condition is not True: empty for an error, or Warning or Info.
    #[serde(default, skip_serializing_if = "Severity::is_error")]
    #[schemars(with = "String")]
    pub severity: Severity,
    /// The time of the last change of this condition: of its status, severity, reason or message.
    ///
    /// Exact in memory; serialized in whole seconds of RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Time>")]
    pub last_transition_time: Option<Time>,
    /// The reason for the status, in one CamelCase word.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason for the status, for humans.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Condition {
    /// Returns true if the status is True.
    pub fn is_true(&self) -> bool {
        self.status == ConditionStatus::True
    }

    /// Returns true if the status is False.
    pub fn is_false(&self) -> bool {
        self.status == ConditionStatus::False
    }

    /// Returns true if the status is Unknown.
    pub fn is_unknown(&self) -> bool {
        self.status == ConditionStatus::Unknown
    }

    /// Returns true if the conditions are equal except for their transition times.
    pub fn eq_ignoring_transition_time(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.status == other.status
            && self.severity == other.severity
            && self.reason == other.reason
            && self.message == other.message
    }
}

fn non_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.filter(|text| !text.is_empty()))
}

/// The status of a condition. It can be compared with `"True"`, `"False"` and `"Unknown"`.
///
/// Any other text deserializes to `Unknown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// The aspect is as it should be.
    True,
    /// The aspect is not as it should be.
    False,
    /// The state of the aspect is not known yet.
    #[default]
    #[serde(other)]
    Unknown,
}

impl ConditionStatus {
    /// The status as text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for ConditionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<&str> for ConditionStatus {
    /// Converts the text of a status, such as the one in a Deployment's condition. Any other text is `Unknown`.
    fn from(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl PartialEq<str> for ConditionStatus {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for ConditionStatus {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

/// The severity of a condition that is not True.
///
/// A severity that this version of reknit does not know is kept as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Severity {
    /// The object is not ready. Empty in JSON.
    #[default]
    #[serde(rename = "")]
    Error,
    /// The object works, and the condition needs attention.
    Warning,
    /// The condition is for information only.
    Info,
    /// Any other text: a severity that a newer reknit may define.
    #[serde(untagged)]
    Other(String),
}

impl Severity {
    /// The severity as text, which is empty for [`Severity::Error`].
    pub fn as_str(&self) -> &str {
        match self {
            Self::Error => "",
            Self::Warning => "Warning",
            Self::Info => "Info",
            Self::Other(text) => text,
        }
    }

    /// Returns true if it is [`Severity::Error`].
    pub fn is_error(&self) -> bool {
        *self == Self::Error
    }
}

impl From<&str> for Severity {
    fn from(text: &str) -> Self {
        match text {
            "" => Self::Error,
            "Warning" => Self::Warning,
            "Info" => Self::Info,
            other => Self::Other(other.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    fn round_trip(condition: Value) -> Value {
        to_value(from_value::<Condition>(condition).unwrap()).unwrap()
    }

    #[test]
    fn a_transition_time_is_serialized_in_whole_seconds() {
        let exact: jiff::Timestamp = "2026-07-01T10:20:30.987654321Z".parse().unwrap();
        let condition = Condition { last_transition_time: Some(Time(exact)), ..Condition::default() };
        assert_eq!(to_value(condition).unwrap()["lastTransitionTime"], "2026-07-01T10:20:30Z");
    }

    #[test]
    fn a_severity_of_a_newer_version_is_kept() {
        let newer = json!({"type": "Ready", "status": "True", "severity": "Catastrophe"});
        assert_eq!(round_trip(newer.clone()), newer);
    }

    #[test]
    fn empty_fields_are_left_out() {
        let stored = json!({
            "type": "Ready", "status": "True", "severity": "", "reason": "", "message": "", "lastTransitionTime": null
        });
        assert_eq!(round_trip(stored), json!({"type": "Ready", "status": "True"}));
    }

    #[test]
    fn any_other_status_is_unknown() {
        assert_eq!(round_trip(json!({"type": "Ready", "status": "Maybe"}))["status"], "Unknown");
    }
}
