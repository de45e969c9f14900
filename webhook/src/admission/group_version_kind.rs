//! The group, version and kind of the objects in a review.

use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};

/// A group, version and kind, displayed as in Go.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupVersionKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl GroupVersionKind {
    pub(crate) fn new(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    pub(crate) fn of<K: kube::Resource<DynamicType = ()>>() -> Self {
        Self { group: K::group(&()).into(), version: K::version(&()).into(), kind: K::kind(&()).into() }
    }

    /// A rule of a webhook configuration.
    pub(crate) fn rule(&self, operations: &[&str], resources: Vec<String>) -> Value {
        json!({
            "operations": operations, "apiGroups": [self.group], "apiVersions": [self.version],
            "resources": resources, "scope": "*",
        })
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}
