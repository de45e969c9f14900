//! References from one object to others, and what makes them valid.

use serde::{Deserialize, Serialize};

/// Names one object of any Kind.
///
/// ```
/// use reknit_apis::KReference;
///
/// let sink = KReference {
///     api_version: "serving.knative.dev/v1".into(),
///     kind: "Service".into(),
///     namespace: Some("default".into()),
///     name: "web".into(),
/// };
/// assert_eq!(serde_json::to_value(&sink).unwrap()["apiVersion"], "serving.knative.dev/v1");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KReference {
    /// Group and version, as in the object: `v1`, `apps/v1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The Kind: `Service`.
    pub kind: String,
    /// The namespace; where none is given, that of the object that holds the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}
