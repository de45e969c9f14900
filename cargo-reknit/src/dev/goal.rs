//! The state of an example that `--once` waits for.

use std::{fmt, str::FromStr};

use anyhow::{Error, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

/// An example, and the status of its condition `Ready` or `Available`. Parsed from `KIND/NAME`, whose status is
/// `True`, or `KIND/NAME=STATUS`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Goal {
    pub(crate) example: String,
    pub(crate) status: String,
}

impl Goal {
    pub(crate) fn new(example: impl Into<String>, status: impl Into<String>) -> Self {
        Self { example: example.into(), status: status.into() }
    }

    /// The goal that the example is ready.
    pub(crate) fn ready(example: &Value) -> Self {
        Self::new(describe(example), "True")
    }
}

/// The custom resources among the examples. The others, such as a Secret that a custom resource refers to, have no
/// condition `Ready`, or no controller here that sets it.
pub(crate) fn custom_resources<'a>(
    examples: &'a [Value],
    definitions: &'a [CustomResourceDefinition],
) -> impl Iterator<Item = &'a Value> {
    examples.iter().filter(|example| {
        let version = example["apiVersion"].as_str().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        definitions.iter().any(|definition| {
            definition.spec.group == group && example["kind"] == *definition.spec.names.kind
        })
    })
}

/// The Kind and the name of an object.
pub(crate) fn describe(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.status {
            "True" => f.write_str(&self.example),
            status => write!(f, "{}={status}", self.example),
        }
    }
}

impl FromStr for Goal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (example, status) = text.split_once('=').unwrap_or((text, "True"));
        if !example.contains('/') {
            bail!("{example:?} is not a Kind and a name, as in Greeting/hello");
        }
        if !["True", "False", "Unknown"].contains(&status) {
            bail!("{status:?} is not the status of a condition: True, False or Unknown");
        }
        Ok(Self::new(example, status))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn examples_of_built_in_kinds_are_not_awaited() {
        let definition: CustomResourceDefinition = serde_json::from_value(json!({
            "spec": {
                "group": "example.com",
                "names": {"kind": "Note", "plural": "notes"},
                "scope": "Namespaced",
                "versions": [],
            },
        }))
        .unwrap();
        let examples = [
            json!({"apiVersion": "v1", "kind": "Secret"}),
            json!({"apiVersion": "example.com/v1beta1", "kind": "Note"}),
            json!({"apiVersion": "other.example.com/v1", "kind": "Note"}),
        ];
        assert_eq!(custom_resources(&examples, &[definition]).collect::<Vec<_>>(), [&examples[1]]);
    }

    #[test]
    fn a_goal_is_a_ready_example_unless_it_names_another_status() {
        let goal = |text: &str| text.parse::<Goal>();
        assert_eq!(goal("Note/a").unwrap(), Goal::new("Note/a", "True"));
        assert_eq!(goal("Note/a=False").unwrap(), Goal::new("Note/a", "False"));
        assert_eq!(goal("Note/a=False").unwrap().to_string(), "Note/a=False");
        assert!(goal("Note").unwrap_err().to_string().contains("not a Kind and a name"));
        assert!(goal("Note/a=Ready").unwrap_err().to_string().contains("not the status of a condition"));
    }
}
