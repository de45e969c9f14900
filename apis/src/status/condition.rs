//! A condition says whether one aspect of an object is as it should be, and since when.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One aspect of an object's state, as it stands in `status.conditions`.
///
/// Usually written through [`Conditions`](crate::Conditions), which keeps the list sorted and the times right.
///
/// ```
/// use reknit_apis::{Condition, ConditionStatus};
///
/// let read: Condition = serde_json::from_str(r#"{"type": "Ready", "status": "False", "reason": "NoPods"}"#)?;
/// assert_eq!(read.status, ConditionStatus::False);
/// assert_eq!(read.reason.as_deref(), Some("NoPods"));
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "One aspect of an object's state.")]
pub struct Condition {
    /// The aspect, in CamelCase: `Ready`, `PodsScheduled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// One of True, False, Unknown.
    #[schemars(with = "String")]
    pub status: ConditionStatus,
    /// How much a condition that is not True matters: empty for an error, else Warning or Info.
    #[serde(default, skip_serializing_if = "Severity::is_error")]
    #[schemars(with = "String")]
    pub severity: Severity,
    /// When anything else about this condition last changed.
    ///
    /// Exact in memory; whole seconds of RFC 3339 once written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Time>")]
    pub last_transition_time: Option<Time>,
    /// Why the condition is as it is, in one CamelCase word.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why the condition is as it is, for humans.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Condition {
    /// Whether the two say the same, whenever they began to.
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

/// Whether an aspect is as it should be. Compares with `"True"`, `"False"` and `"Unknown"`.
///
/// Anything else that is read from an object counts as `Unknown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It is.
    True,
    /// It is not.
    False,
    /// Nobody can tell yet.
    #[default]
    #[serde(other)]
    Unknown,
}

impl ConditionStatus {
    /// As it stands in an object.
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

/// How much it matters that a condition is not True.
///
/// A severity this version does not know is kept as it was read, and written back so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Severity {
    /// It keeps the object from being ready. Empty in JSON.
    #[default]
    Error,
    /// It should be looked at, though the object works.
    Warning,
    /// It is only worth knowing.
    Info,
    /// Something a newer version wrote.
    Other(String),
}

impl Severity {
    /// As it stands in an object: empty for [`Severity::Error`].
    pub fn as_str(&self) -> &str {
        match self {
            Self::Error => "",
            Self::Warning => "Warning",
            Self::Info => "Info",
            Self::Other(text) => text,
        }
    }

    /// Whether it is [`Severity::Error`].
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

impl Serialize for Severity {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Severity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(String::deserialize(from)?.as_str().into())
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
    fn a_time_is_exact_in_memory_and_whole_seconds_on_the_wire() {
        let exact: jiff::Timestamp = "2026-07-01T10:20:30.987654321Z".parse().unwrap();
        let condition = Condition { last_transition_time: Some(Time(exact)), ..Condition::default() };
        assert_eq!(condition.clone().last_transition_time, Some(Time(exact)));
        assert_eq!(to_value(condition).unwrap()["lastTransitionTime"], "2026-07-01T10:20:30Z");
    }

    #[test]
    fn a_severity_of_a_newer_version_is_kept() {
        let newer = json!({"type": "Ready", "status": "True", "severity": "Catastrophe"});
        assert_eq!(round_trip(newer.clone()), newer);
    }

    #[test]
    fn what_is_empty_is_left_out() {
        let stored = json!({
            "type": "Ready", "status": "True", "severity": "", "reason": "", "message": "", "lastTransitionTime": null
        });
        assert_eq!(round_trip(stored), json!({"type": "Ready", "status": "True"}));
    }

    #[test]
    fn a_status_that_is_none_of_the_three_is_unknown() {
        assert_eq!(round_trip(json!({"type": "Ready", "status": "Maybe"}))["status"], "Unknown");
    }
}
